"""`slurm.sh lesson mystery answer` and `reveal`: the answer, and the solution."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption
from harness.cli.study.mystery import MysteryRun, RunArgument, asked_of
from harness.cli.watch.follow import write_report
from harness.common.display.format import duration, duration_range
from harness.common.display.text import ranks_named
from harness.common.errors import RequestError
from harness.common.paths import COMMAND
from harness.experiment.parse import command_of
from harness.launch.poll import state_of
from harness.run.mystery import (
    MysteryAnswer,
    MysterySolution,
    injected,
    read_revealed,
    show_records,
    write_answer,
    write_revealed,
)
from harness.run.record import FINAL
from harness.study.mysteries import checked

if TYPE_CHECKING:
    from harness.analysis.summary import TimeLost
    from harness.common.faults.fault import Fault


def reveal_command(run: RunArgument, as_json: JsonOption = False) -> int:
    """End a mystery: the solution, the answer, and the diagnosis of the harness."""
    mystery = asked_of(run)
    if state_of(mystery.run) not in (*FINAL, "unknown"):
        raise RequestError(f"RUN: {mystery.run.job_id} has not ended: {COMMAND} status {mystery.run.job_id}")
    if read_revealed(mystery.run.path) is None:
        write_revealed(mystery.run.path, MysterySolution(faults=tuple(map(str, mystery.faults))))
    show_records(mystery.run.path)
    summary = next(iter(write_report(mystery.run)[0]), None)
    found = [one for one in (summary.findings if summary else []) if any(_is_same(one, f) for f in mystery.faults)]
    unnamed = [fault for fault in mystery.faults if not any(_is_same(one, fault) for one in found)]
    if as_json:
        solution = {
            "run": mystery.run.job_id,
            "faults": list(map(str, mystery.faults)),
            "answer": mystery.answer.model_dump() if mystery.answer else None,
            "right": mystery.is_right,
            "findings": [one.model_dump() for one in found],
            "without": _launch_without(mystery),
        }
        print(json.dumps(solution, indent=1))
    else:
        print("\n".join([*_truth(mystery), *_diagnosis(unnamed, found), *_next(mystery)]))
    return 0


def _is_same(time_lost: TimeLost, fault: Fault) -> bool:
    return time_lost.cause == fault.name and (fault.rank is None or fault.rank in time_lost.ranks)


def _launch_without(mystery: MysteryRun) -> str | None:
    """The command of the same training without the faults; None: no flags ask for it."""
    site = mystery.run.record.site
    arguments = command_of(mystery.experiment.model_copy(update={"mystery": None}), site.name, site.defaults)
    return None if arguments is None else f"{COMMAND} {shlex.join(arguments)}"


def _truth(mystery: MysteryRun) -> Iterator[str]:
    yield f"mystery {mystery.run.job_id}, level {mystery.level}: {_judged(mystery)}"
    lines = injected(mystery.run.path)
    for fault in mystery.faults:
        took = [line.ns for line in lines if line.fault == fault.name]
        measured = f" (injected {len(took)} times, median {median(took) / 1e6:.1f} ms)" if took else ""
        yield f"  it was  {fault}: {fault.kind.meaning}{measured}"


def _judged(mystery: MysteryRun) -> str:
    if mystery.answer is None:
        return "no answer"
    return f"{'right' if mystery.is_right else 'not right'}: {mystery.answer}"


def _diagnosis(unnamed: list[Fault], losses: list[TimeLost]) -> Iterator[str]:
    for fault in unnamed:
        yield f"  the diagnosis of the harness does not name {fault.name}"
    for one in losses:
        interval = "" if one.low_ns is None else f" ({duration_range(one.low_ns, one.high_ns)})"
        seen = f": {one.evidence}" if one.evidence else ""
        where = f"{one.cause} on {ranks_named(rank for rank in one.ranks if rank is not None)}"
        yield f"  the harness's diagnosis: {where}, {duration(one.lost_ns)} lost per step{interval}{seen}"


def _next(mystery: MysteryRun) -> Iterator[str]:
    if (launch := _launch_without(mystery)) is not None:
        yield f"the same training without it: {launch}"
        yield f"next: {COMMAND} compare {mystery.run.job_id} last"


def answer_command(
    run: RunArgument,
    *,
    cause: Annotated[str, typer.Option(metavar="NAME", help="a name of `help faults`")],
    rank: Annotated[str, typer.Option("--rank", metavar="R,…|all", help="the ranks that have it")] = "all",
    as_json: JsonOption = False,
) -> int:
    """Say what makes a mystery slow, and on which ranks. A mystery takes one answer."""
    asked = asked_of(run)
    if read_revealed(asked.run.path) is not None:
        raise RequestError(f"RUN: {asked.run.job_id} was revealed, so it takes no answer")
    reveal = f"lesson mystery reveal {asked.run.job_id}"
    if asked.answer is not None:
        raise RequestError(f"RUN: {asked.run.job_id} has its one answer, {asked.answer}: {COMMAND} {reveal} ends it")
    answer = checked(MysteryAnswer(cause=cause, ranks=_ranks(rank)), asked.world_size)
    write_answer(asked.run.path, answer)
    answered = asked._replace(answer=answer)
    if as_json:
        print(json.dumps({"run": asked.run.job_id, **answer.model_dump(), "right": answered.is_right}, indent=1))
    else:
        print(f"{_judged(answered)}\nnext: {COMMAND} {reveal}")
    return 0


def _ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise RequestError(f"--rank takes all, or ranks as in 0,3, not {text!r}") from None
