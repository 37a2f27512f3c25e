"""`slurm.sh mystery answer`: take an answer, keep it, print its points and a hint for each wrong part."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption
from harness.cli.study.mystery_request import GradedMystery, RunArgument, RunFlag, asked_of
from harness.common.errors import RequestError
from harness.run.mystery import Answer, add_answer, read_revealed

if TYPE_CHECKING:
    from harness.study.mystery_grades import Grade, Result


def command(
    run: RunArgument,
    *,
    cause: Annotated[
        str,
        typer.Option(
            "--cause",
            metavar="NAME",
            help="the cause: a name of slurm.sh faults; of a hang or crash a kind of slurm.sh faults hang|crash",
        ),
    ],
    ms: Annotated[
        float | None,
        typer.Option(
            "--ms", help="time that it costs in one affected step, on one affected rank", show_default=False
        ),
    ] = None,
    rank: Annotated[str, typer.Option("--rank", metavar="R,…|all", help="the affected ranks")] = "all",
    phase: Annotated[
        str | None, typer.Option("--phase", help="phase of a host stall: forward, backward or optimizer")
    ] = None,
    every: Annotated[int, typer.Option("--every", metavar="K", help="it affects every K-th step")] = 1,
    step: Annotated[
        int | None,
        typer.Option("--step", help="of a hang or crash: the step in which it came", show_default=False),
    ] = None,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="also show the solution, as mystery reveal does")
    ] = False,
    start: RunFlag = None,
    as_json: JsonOption = False,
) -> int:
    """Answer what makes a mystery slow, or why it hangs or dies. Each answer is kept. At level 3, give one answer for
    each of the two causes."""
    from harness.study.mystery_grades import checked

    asked = asked_of(run)
    if read_revealed(asked.run.path) is not None:
        raise RequestError(f"RUN: {asked.run.job_id} was revealed, so no further answer counts")
    said = Answer(cause=cause, ms=ms, ranks=_ranks(rank), phase=phase, every=every, step=step)
    answer = checked(said, asked.faults, asked.world_size)
    add_answer(asked.run.path, asked.line(answer))
    found, number = asked.result, len(asked.answers)
    latest = next(one[1] for one in found.last if one is not None and one[0] == number)
    if as_json and not reveal:
        print(json.dumps(_as_data(asked, number, latest, found), indent=1))
    elif not as_json:
        print("\n".join(_lines(asked, number, latest, found)))
    if reveal:
        from harness.cli.study.mystery_reveal import reveal as tell

        return tell(asked, start, as_json)
    return 0


def _ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise RequestError(f"--rank takes all, or ranks as in 0,3, not {text!r}") from None


def _lines(asked: GradedMystery, number: int, latest: Grade, found: Result) -> list[str]:
    lines = [f"answer {number} to {asked.run.job_id}: {latest.points} of 100"]
    for part in latest.parts:
        mark = "✗" if part.hint else "✓"
        lines.append(f"  {mark} {part.name:<6} {part.points:>3} of {part.of}  {part.hint}".rstrip())
    if len(found.faults) > 1:
        lines.append(f"both causes: {found.points} of 100" + "; one has no answer" * found.missing)
    then = "reveal" if found.points == 100 else "answer"
    return [*lines, f"next: slurm.sh mystery {then} {asked.run.job_id}" + " --cause …" * (then == "answer")]


def _as_data(asked: GradedMystery, number: int, latest: Grade, found: Result) -> dict[str, object]:
    parts = [{"name": p.name, "points": p.points, "of": p.of, "hint": p.hint or None} for p in latest.parts]
    data = {"run": asked.run.job_id, "answer": number, "points": latest.points, "parts": parts}
    return {**data, "total": found.points, "not_answered": found.missing}
