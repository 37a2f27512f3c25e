"""`slurm.sh mystery answer`: take an answer, keep it, print its points and a hint for each miss."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.cli.options import JsonOption
from harness.common.errors import RequestError
from harness.run import Run, find_run
from harness.run.mystery import (
    Answer,
    AnswerLine,
    add_answer,
    answers_file,
    before_reveal,
    read_answers,
    read_revealed,
)

if TYPE_CHECKING:
    from harness.common.faults import Fault
    from harness.experiment.base import Mystery, Training
    from harness.study.mystery_grades import Grade, Result

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="job id, name, path of a mystery's run, or last")
]
RunFlag = Annotated[
    bool | None,
    typer.Option(
        "--run/--no-run",
        help="start the training without the faults, or don't; without either: here yes, on a cluster after asking",
        show_default=False,
    ),
]


class Asked(NamedTuple):
    """A mystery's run, with all that grading needs."""

    run: Run
    experiment: Training
    mystery: Mystery
    faults: tuple[Fault, ...]
    world_size: int

    @property
    def answers(self) -> list[Answer]:
        """The answers that count, oldest first."""
        lines = before_reveal(read_answers(answers_file(self.run.path)))
        return [line.answer for line in lines if line.answer is not None]

    @property
    def result(self) -> Result:
        """All answers graded."""
        from harness.study.mystery_grades import result

        return result(self.faults, self.answers, self.world_size)

    def line(self, answer: Answer | None) -> AnswerLine:
        """A line of the answers file, of now."""
        record = self.run.record
        return AnswerLine(
            unix_ns=time.time_ns(),
            student=record.user,
            run=self.run.name,
            exercise=self.experiment.exercise,
            world_size=self.world_size,
            mystery=self.mystery,
            answer=answer,
        )


def asked_of(token: str) -> Asked:
    """The mystery of a run.

    Raises:
        RequestError: there is no such run, it is no mystery, or its secret was changed.
    """
    from harness.common.faults import parse_fault
    from harness.experiment.exercises import Training
    from harness.study.mysteries import open_mystery

    run = find_run(token)
    experiment = run.record.experiment
    if not isinstance(experiment, Training) or experiment.mystery is None:
        raise RequestError(f"RUN: {run.job_id} is no mystery: start one with slurm.sh mystery -e 1")
    faults = tuple(map(parse_fault, open_mystery(experiment.mystery).faults))
    return Asked(run, experiment, experiment.mystery, faults, experiment.world_size or 1)


def command(
    run: RunArgument,
    *,
    cause: Annotated[
        str, typer.Option("--cause", metavar="NAME", help="what it was: a name of slurm.sh faults")
    ],
    ms: Annotated[
        float,
        typer.Option("--ms", help="how long it takes in one step that it hits, on one rank that does it"),
    ],
    rank: Annotated[str, typer.Option("--rank", metavar="R,…|all", help="the ranks that do it")] = "all",
    phase: Annotated[
        str | None, typer.Option("--phase", help="forward, backward, optimizer: where a host stall is")
    ] = None,
    every: Annotated[int, typer.Option("--every", metavar="K", help="it comes in every K-th step")] = 1,
    reveal: Annotated[bool, typer.Option("--reveal", help="then tell all, as mystery reveal does")] = False,
    start: RunFlag = None,
    as_json: JsonOption = False,
) -> int:
    """Say what makes a mystery slow; each answer is kept. At level 3, give one answer for each of the two causes."""
    from harness.study.mystery_grades import checked

    asked = asked_of(run)
    if read_revealed(asked.run.path) is not None:
        raise RequestError(f"RUN: {asked.run.job_id} was revealed: no answer counts any more")
    answer = checked(
        Answer(cause=cause, ms=ms, ranks=_ranks(rank), phase=phase, every=every), asked.world_size
    )
    add_answer(asked.run.path, asked.line(answer))
    found, number = asked.result, len(asked.answers)
    latest = next(one[1] for one in found.last if one is not None and one[0] == number)
    if as_json and not reveal:
        print(json.dumps(_as_data(asked, number, latest, found), indent=1))
    elif not as_json:
        print("\n".join(_lines(asked, number, latest, found)))
    if reveal:
        from harness.cli.mystery_reveal import reveal as tell

        return tell(asked, start, as_json)
    return 0


def _ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise RequestError(f"--rank takes all, or ranks as in 0,3, not {text!r}") from None


def _lines(asked: Asked, number: int, latest: Grade, found: Result) -> list[str]:
    lines = [f"answer {number} to {asked.run.job_id}: {latest.points} of 100"]
    for part in latest.parts:
        mark = "✗" if part.hint else "✓"
        lines.append(f"  {mark} {part.name:<6} {part.points:>3} of {part.of}  {part.hint}".rstrip())
    if len(found.faults) > 1:
        lines.append(f"both causes together: {found.points} of 100" + "; one is not answered" * found.missing)
    then = "reveal" if found.points == 100 else "answer"
    return [*lines, f"next: slurm.sh mystery {then} {asked.run.job_id}" + " --cause …" * (then == "answer")]


def _as_data(asked: Asked, number: int, latest: Grade, found: Result) -> dict[str, object]:
    parts = [{"name": p.name, "points": p.points, "of": p.of, "hint": p.hint or None} for p in latest.parts]
    data = {"run": asked.run.job_id, "answer": number, "points": latest.points, "parts": parts}
    return {**data, "total": found.points, "not_answered": found.missing}
