"""`slurm.sh lesson mystery answer` and `reveal`: the answer, and the solution."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.cli.launch.plan import start_announced
from harness.cli.launch.untrusted import YesOption, may_launch, source_of
from harness.cli.options import JsonOption
from harness.cli.study.mystery import MysteryRun, RunArgument, RunFlag, asked_of
from harness.cli.watch.follow import complete, write_report
from harness.common.errors import RequestError, TrainingMissing
from harness.common.paths import COMMAND, PROGRAM
from harness.experiment.parse import command_of
from harness.launch.check import site_lacks_training
from harness.launch.poll import state_of
from harness.launch.submit import prepare
from harness.run import Run
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
    from harness.analysis.summary import Summary, TimeLost
    from harness.common.faults import Fault


class HealthyRun(NamedTuple):
    """The step without the faults: by the replay of the run with them (None: it found none of them), and measured.
    Nanoseconds, mean over the counted steps; None: not measured."""

    step_ns: int | None
    predicted_ns: int | None
    low_ns: int | None
    high_ns: int | None
    measured_ns: int | None = None


def reveal_command(run: RunArgument, start: RunFlag = None, yes: YesOption = False, as_json: JsonOption = False) -> int:
    """End a mystery: the solution, the answer, the diagnosis of the harness, and the step time without the faults."""
    from harness.measure.request import load_summary

    mystery = asked_of(run)
    if state_of(mystery.run) not in (*FINAL, "unknown"):
        raise RequestError(f"RUN: {mystery.run.job_id} has not ended: {PROGRAM} status {mystery.run.job_id}")
    _end(mystery)
    summary = next(iter(write_report(mystery.run)[0]), None)
    found = [one for one in (summary.findings if summary else []) if any(_is_same(one, f) for f in mystery.faults)]
    unnamed = [fault for fault in mystery.faults if not any(_is_same(one, fault) for one in found)]
    before = _without(summary, found)
    if not as_json:
        print("\n".join([*_truth(mystery), *_diagnosis(unnamed, found), *_prediction(before, unnamed)]))
    healthy = _healthy(mystery, start, as_json, yes)
    plain = load_summary(str(healthy.path))[1] if healthy else None
    measured = before._replace(measured_ns=plain.replay.step_ns if plain and plain.replay else None)
    if as_json:
        solution = {
            "run": mystery.run.job_id,
            "faults": list(map(str, mystery.faults)),
            "answer": mystery.answer.model_dump() if mystery.answer else None,
            "right": mystery.is_right,
            "findings": [one.model_dump() for one in found],
            **measured._asdict(),
            "without": healthy.job_id if healthy else None,
        }
        print(json.dumps(solution, indent=1))
    elif healthy:
        print("\n".join([_comparison(measured, healthy), *_doubts(mystery, summary, plain)]))
    return 0


def _end(mystery: MysteryRun) -> None:
    if read_revealed(mystery.run.path) is None:
        write_revealed(mystery.run.path, MysterySolution(faults=tuple(map(str, mystery.faults))))
    show_records(mystery.run.path)


def _is_same(time_lost: TimeLost, fault: Fault) -> bool:
    return time_lost.cause == fault.name and (fault.rank is None or fault.rank in time_lost.ranks)


def _without(summary: Summary | None, losses: list[TimeLost]) -> HealthyRun:
    """The step minus what the replay says is lost by the causes that it found."""
    if summary is None or summary.replay is None:
        return HealthyRun(None, None, None, None)
    step = summary.replay.step_ns
    if not losses:
        return HealthyRun(step, None, None, None)
    lost, low, high = (sum(getattr(f, field) for f in losses) for field in ("lost_ns", "low_ns", "high_ns"))
    return HealthyRun(step, step - lost, step - high, step - low)


def _healthy(mystery: MysteryRun, may_start: bool | None, quiet: bool, yes: bool) -> Run | None:
    """The run without the faults: the one that there is, unless a new one is asked for, else a new one, if wanted."""
    from harness.cli.study.lesson import wants_runs

    revealed, site = read_revealed(mystery.run.path), mystery.run.record.site
    before = Run(Path(revealed.without)) if revealed is not None and revealed.without else None
    if before is not None and before.is_run and may_start is not True:
        return before
    if not wants_runs(may_start, False, site):
        return None
    if site_lacks_training(site):
        raise TrainingMissing
    plain = mystery.experiment.model_copy(update={"mystery": None})
    if not may_launch(source_of(mystery.run, mystery.run.record), [plain], site, yes=yes):
        return None
    arguments = command_of(plain, None, site.defaults) or ["lesson", "mystery", "reveal", mystery.run.job_id]
    run = start_announced(prepare(plain, site), f"{COMMAND} {shlex.join(arguments)}")
    complete(run, quiet)
    if revealed is not None:
        write_revealed(mystery.run.path, revealed.model_copy(update={"without": str(run.path)}))
    return run


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
        ranks = ",".join(str(rank) for rank in one.ranks)
        interval = ""
        if one.low_ns is not None and one.high_ns is not None:
            interval = f" ({one.low_ns / 1e6:.1f} to {one.high_ns / 1e6:.1f})"
        yield (
            f"  the harness's diagnosis: {one.cause} on rank {ranks}, {one.lost_ns / 1e6:.1f} ms lost per step"
            f"{interval}: {one.evidence}"
        )


def _prediction(healthy_run: HealthyRun, unnamed: list[Fault]) -> Iterator[str]:
    if healthy_run.step_ns is not None:
        yield f"step with the faults: {healthy_run.step_ns / 1e6:.1f} ms"
    if healthy_run.predicted_ns is not None and healthy_run.low_ns is not None and healthy_run.high_ns is not None:
        low, high = healthy_run.low_ns / 1e6, healthy_run.high_ns / 1e6
        what = "what it named" if unnamed else "it"
        yield f"step without {what}, by the replay: {healthy_run.predicted_ns / 1e6:.1f} ms ({low:.1f} to {high:.1f})"


def _comparison(healthy_run: HealthyRun, healthy: Run) -> str:
    if healthy_run.measured_ns is None:
        return f"{healthy.job_id} left no trace to measure the step by"
    measured = f"step without the faults, measured: {healthy_run.measured_ns / 1e6:.1f} ms ({healthy.job_id})"
    if healthy_run.predicted_ns is None:
        return measured
    off = healthy_run.predicted_ns / healthy_run.measured_ns - 1
    return f"{measured}; the replay predicted {off:+.1%} of that"


def _doubts(mystery: MysteryRun, *summaries: Summary | None) -> Iterator[str]:
    if any(s is not None and s.quality.verdict.value != "good" for s in summaries):
        yield (
            "One of the two recordings is doubtful. Repeat both on a quiet machine: "
            f"{PROGRAM} lesson mystery reveal {mystery.run.job_id} --run"
        )


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
        raise RequestError(f"RUN: {asked.run.job_id} has its one answer, {asked.answer}: {PROGRAM} {reveal} ends it")
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
