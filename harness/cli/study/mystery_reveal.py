"""`slurm.sh lesson mystery answer`, `reveal` and `class`: an answer and its points, the solution, all points."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.cli.launch.plan import start_announced
from harness.cli.launch.untrusted import YesOption, may_launch, source_of
from harness.cli.options import JsonOption
from harness.cli.study.mystery import GradedMystery, RunArgument, RunFlag, asked_of
from harness.cli.watch.follow import complete, write_report
from harness.common.errors import RequestError, TrainingMissing
from harness.common.format import aligned
from harness.common.paths import COMMAND, PROGRAM, expanded
from harness.experiment.parse import command_of
from harness.heartbeats.hang import reveal_hang
from harness.launch.check import site_lacks_training
from harness.launch.poll import state_of
from harness.launch.submit import prepare
from harness.run import Run
from harness.run.mystery import (
    MysteryAnswer,
    MysterySolution,
    add_answer,
    injected,
    read_revealed,
    show_records,
    write_revealed,
)
from harness.run.record import FINAL
from harness.study.mysteries import Board, MysteryRow, answer_files, read_board
from harness.study.mystery_grades import Grade, MysteryResult, checked

if TYPE_CHECKING:
    from harness.analysis.summary import Summary, TimeLost
    from harness.common.faults import Fault

HEAD = ("student", "run", "exercise", "level", "mystery", "answers", "causes", "points", "")


class HealthyRun(NamedTuple):
    """The step without the faults: by the replay of the run with them (None: it found none of them), and measured.
    Nanoseconds, mean over the counted steps; None: not measured."""

    step_ns: int | None
    predicted_ns: int | None
    low_ns: int | None
    high_ns: int | None
    measured_ns: int | None = None


def reveal_command(run: RunArgument, start: RunFlag = None, yes: YesOption = False, as_json: JsonOption = False) -> int:
    """End a mystery: the solution, the answers, the diagnosis of the harness, and the step time without the faults."""
    return tell(asked_of(run), start, as_json, yes=yes)


def tell(graded_mystery: GradedMystery, may_start: bool | None, as_json: bool, *, yes: bool = False) -> int:
    """Print the solution; run the training without the faults, if asked. Raises RequestError: the run goes on."""
    from harness.measure.request import load_summary

    if state_of(graded_mystery.run) not in (*FINAL, "unknown"):
        raise RequestError(
            f"RUN: {graded_mystery.run.job_id} has not ended: {PROGRAM} status {graded_mystery.run.job_id}"
        )
    _end(graded_mystery)
    if graded_mystery.ends:
        return _ending(graded_mystery, as_json)
    summary = next(iter(write_report(graded_mystery.run)[0]), None)
    found = [
        one for one in (summary.findings if summary else []) if any(_is_same(one, f) for f in graded_mystery.faults)
    ]
    unnamed = [fault for fault in graded_mystery.faults if not any(_is_same(one, fault) for one in found)]
    before = _without(summary, found)
    if not as_json:
        print("\n".join([*_truth(graded_mystery), *_diagnosis(unnamed, found), *_prediction(before, unnamed)]))
    healthy = _healthy(graded_mystery, may_start, as_json, yes)
    plain = load_summary(str(healthy.path))[1] if healthy else None
    measured = before._replace(measured_ns=plain.replay.step_ns if plain and plain.replay else None)
    if as_json:
        findings = [one.model_dump() for one in found]
        told = {"findings": findings, **measured._asdict(), "without": healthy.job_id if healthy else None}
        print(json.dumps(_solution(graded_mystery) | told, indent=1))
    elif healthy:
        print("\n".join([_comparison(measured, healthy), *_doubts(graded_mystery, summary, plain)]))
    return 0


def _end(graded_mystery: GradedMystery) -> None:
    if read_revealed(graded_mystery.run.path) is None:
        add_answer(graded_mystery.run.path, graded_mystery.line(None))
        write_revealed(graded_mystery.run.path, MysterySolution(faults=graded_mystery.mystery.faults))
    show_records(graded_mystery.run.path)
    reveal_hang(graded_mystery.run.path)


def _ending(graded_mystery: GradedMystery, as_json: bool) -> int:
    from harness.study.lessons import ending_of

    told = ending_of(graded_mystery.run).sentence or "nothing: nobody saw its end"
    lines = [*_truth(graded_mystery), f"  the harness says: {told}"]
    print(json.dumps(_solution(graded_mystery) | {"told": told}, indent=1) if as_json else "\n".join(lines))
    return 0


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


def _healthy(graded_mystery: GradedMystery, may_start: bool | None, quiet: bool, yes: bool) -> Run | None:
    """The run without the faults: the one that there is, unless a new one is asked for, else a new one, if wanted."""
    from harness.cli.study.lesson import wants_runs

    revealed, site = read_revealed(graded_mystery.run.path), graded_mystery.run.record.site
    before = Run(Path(revealed.without)) if revealed is not None and revealed.without else None
    if before is not None and before.is_run and may_start is not True:
        return before
    if not wants_runs(may_start, False, site):
        return None
    if site_lacks_training(site):
        raise TrainingMissing
    plain = graded_mystery.experiment.model_copy(update={"mystery": None})
    if not may_launch(source_of(graded_mystery.run, graded_mystery.run.record), [plain], site, yes=yes):
        return None
    arguments = command_of(plain, None, site.defaults) or ["lesson", "mystery", "reveal", graded_mystery.run.job_id]
    run = start_announced(prepare(plain, site), f"{COMMAND} {shlex.join(arguments)}")
    complete(run, quiet)
    if revealed is not None:
        write_revealed(graded_mystery.run.path, revealed.model_copy(update={"without": str(run.path)}))
    return run


def _truth(graded_mystery: GradedMystery) -> Iterator[str]:
    yield (
        f"mystery {graded_mystery.run.job_id}, level {graded_mystery.mystery.level}: "
        f"{graded_mystery.result.points} of 100 points"
    )
    lines = injected(graded_mystery.run.path)
    for fault in graded_mystery.faults:
        took = [line.ns for line in lines if line.fault == fault.name and not graded_mystery.ends]
        measured = f" (injected {len(took)} times, median {median(took) / 1e6:.1f} ms)" if took else ""
        yield f"  it was  {fault}: {_meaning(fault)}{measured}"
    yield from graded_mystery.answer_lines()


def _meaning(fault: Fault) -> str:
    kinds = fault.kind.key("kind")
    return dict(kinds.explained)[fault.values["kind"]] if kinds and fault.kind.ends else fault.kind.meaning


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


def _doubts(graded_mystery: GradedMystery, *summaries: Summary | None) -> Iterator[str]:
    if any(s is not None and s.quality.verdict.value != "good" for s in summaries):
        yield (
            "One of the two recordings is doubtful. Repeat both on a quiet machine: "
            f"{PROGRAM} lesson mystery reveal {graded_mystery.run.job_id} --run"
        )


def _solution(graded_mystery: GradedMystery) -> dict[str, object]:
    faults, answers = list(map(str, graded_mystery.faults)), [answer.model_dump() for answer in graded_mystery.answers]
    return {
        "run": graded_mystery.run.job_id,
        "faults": faults,
        "points": graded_mystery.result.points,
        "answers": answers,
    }


def answer_command(
    run: RunArgument,
    *,
    cause: Annotated[
        str, typer.Option(metavar="NAME", help="a name of `help faults`, or a kind of `help faults hang|crash`")
    ],
    ms: Annotated[
        float | None, typer.Option("--ms", help="time that it costs in one affected step, on one affected rank")
    ] = None,
    rank: Annotated[str, typer.Option("--rank", metavar="R,…|all", help="the affected ranks")] = "all",
    phase: Annotated[str | None, typer.Option(help="phase of a host stall: forward, backward or optimizer")] = None,
    every: Annotated[int, typer.Option("--every", metavar="K", help="it affects every K-th step")] = 1,
    step: Annotated[int | None, typer.Option("--step", help="of a hang or crash: the step in which it came")] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="also show the solution, as reveal does")] = False,
    start: RunFlag = None,
    as_json: JsonOption = False,
) -> int:
    """Answer what makes a mystery slow, or why it hangs or dies. Each answer is kept."""
    asked = asked_of(run)
    if read_revealed(asked.run.path) is not None:
        raise RequestError(f"RUN: {asked.run.job_id} was revealed, so no further answer counts")
    said = MysteryAnswer(cause=cause, ms=ms, ranks=_ranks(rank), phase=phase, every=every, step=step)
    answer = checked(said, asked.faults, asked.world_size)
    add_answer(asked.run.path, asked.line(answer))
    found, number = asked.result, len(asked.answers)
    latest = next(one[1] for one in found.last if one is not None and one[0] == number)
    if as_json and not reveal:
        print(json.dumps(_answer_as_data(asked, number, latest, found), indent=1))
    elif not as_json:
        print("\n".join(_lines(asked, number, latest, found)))
    if reveal:
        return tell(asked, start, as_json)
    return 0


def _ranks(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise RequestError(f"--rank takes all, or ranks as in 0,3, not {text!r}") from None


def _lines(graded_mystery: GradedMystery, number: int, latest: Grade, mystery_result: MysteryResult) -> list[str]:
    lines = [f"answer {number} to {graded_mystery.run.job_id}: {latest.points} of 100"]
    for part in latest.parts:
        mark = "✗" if part.hint else "✓"
        lines.append(f"  {mark} {part.name:<6} {part.points:>3} of {part.of}  {part.hint}".rstrip())
    if len(mystery_result.faults) > 1:
        lines.append(f"both causes: {mystery_result.points} of 100" + "; one has no answer" * mystery_result.missing)
    then = "reveal" if mystery_result.points == 100 else "answer"
    return [
        *lines,
        f"next: {COMMAND} lesson mystery {then} {graded_mystery.run.job_id}" + " --cause …" * (then == "answer"),
    ]


def _answer_as_data(
    graded_mystery: GradedMystery, number: int, latest: Grade, mystery_result: MysteryResult
) -> dict[str, object]:
    parts = [{"name": p.name, "points": p.points, "of": p.of, "hint": p.hint or None} for p in latest.parts]
    data = {"run": graded_mystery.run.job_id, "answer": number, "points": latest.points, "parts": parts}
    return {**data, "total": mystery_result.points, "not_answered": mystery_result.missing}


def class_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE|FOLDER…", help="answers files, or folders of them, as HARNESS_RUNS")
    ],
    as_json: JsonOption = False,
) -> int:
    """The board of a class: each student's points, and the most common wrong answers."""
    board = read_board(answer_files([expanded(str(path)) for path in paths]))
    print(json.dumps(asdict(board), indent=1) if as_json else "\n".join(_class_lines(board)))
    return 0


def _class_lines(board: Board) -> Iterator[str]:
    yield from aligned([HEAD, *map(_cells, board.rows)], range(len(HEAD)))
    if board.mistakes:
        yield ""
        yield "The most common wrong causes"
    for mistake in board.mistakes:
        who = "1 student" if mistake.students == 1 else f"{mistake.students} students"
        yield f"  {mistake.said} instead of {mistake.instead_of}: {mistake.times} × by {who}"


def _cells(row: MysteryRow) -> tuple[str, ...]:
    points = "–" if row.points is None else str(row.points)
    causes = f"{row.causes_right} of {row.causes}" if row.causes else "–"
    note = row.note or ("revealed" if row.revealed else "")
    numbers = map(str, (row.exercise, row.level))
    return (row.student, row.run, *numbers, row.mystery, str(row.tries), causes, points, note)
