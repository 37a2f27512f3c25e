"""What the report says of a simulated job, beside what is true of it. The only module here that knows the harness."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from harness.analysis.summary import Summary, TimeLost, Window
from harness.explain.answer import answer
from harness.explain.messages import largest
from harness.measure.jobs import summarise
from harness.measure.paths import measure_files, trace_files

from .cases import Case, Request
from .conservation import broken_promises
from .faults import CHANGES, NOT_RECORDED, WITHOUT, Planted, same
from .kineto_file import write_kineto
from .nsys_file import write_nsys
from .program import Recording
from .simulate import mean_step_ns, run, run_step_ns
from .start_cases import StartCase, StartRequest
from .training import Training

NODE = 4  # ranks
SURE = 0.04  # of the step: a larger loss must be told
SKEW_NS = 1_700_000
Jobs = list[Summary]
NEAR_START = 0.1  # of a time
SMALL_START = 0.08  # of what was recorded, or of the stretch that findings are of: a smaller difference is none


@dataclass
class FaultResult:
    """One planted fault. place: where in the findings it is, from 0; None: not told. own_ns: its loss in the
    simulation; told_ns: in the report."""

    name: str
    causes: tuple[str, ...]
    own_ns: float
    place: int | None = None
    cause: bool = False
    ranks: bool = False
    where: bool = False
    told_ns: int | None = None

    @property
    def right(self) -> bool:
        return self.cause and self.ranks and self.where

    @property
    def error(self) -> float | None:
        """Of the lost time; None if it was not told."""
        return None if self.told_ns is None else self.told_ns / self.own_ns - 1


@dataclass
class Result:
    """One job."""

    name: str
    tool: str
    bound: str
    kind: str
    ranks: int
    step_ns: float
    measured_ns: int = 0
    replay_error: float = 1.0
    faults: list[FaultResult] = field(default_factory=list)
    in_order: bool = True
    findings: list[dict[str, Any]] = field(default_factory=list)
    false: list[str] = field(default_factory=list)
    what_ifs: dict[str, tuple[int, float]] = field(default_factory=dict)  # told and simulated
    unexplained_ns: int | None = None
    own_ns: float = 0.0
    broken: list[str] = field(default_factory=list)  # what claims more than the devices' time allows

    @property
    def kind_of_fault(self) -> str:
        """The name without its number."""
        return self.name.rsplit("-", 1)[0]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def write(recordings: Sequence[Recording], tool: str, folder: Path, *, python: bool) -> None:
    """The files of a job."""
    world = len(recordings)
    if tool == "kineto":
        for own in recordings:
            write_kineto(own, world, folder / f"rank{own.rank}.json", python=python, skew_ns=SKEW_NS)
        return
    for node in range(0, world, NODE):
        write_nsys(recordings[node : node + NODE], world, folder / f"node{node // NODE}.sqlite", node=node // NODE)


def summary_of(recordings: Sequence[Recording], tool: str, *, python: bool) -> Summary:
    """The summary of a job, as `report` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        write(recordings, tool, Path(folder), python=python)
        (summary,) = summaries_of(Path(folder))
    return summary


def summaries_of(folder: Path) -> list[Summary]:
    """The summaries of a folder's jobs, as `report` makes them."""
    read = measure_files(trace_files([folder]), Window.STEPS, workers=1)
    return summarise(read.parts, read.broken)


def message_of(summary: Summary) -> tuple[str, int | None, int | None, str | None, float, bool]:
    """Of the largest message: kind, bytes, ranks, range, its exposed time in a step, and whether it is a single one."""
    found = largest(summary)
    if found is None:
        return "", None, None, None, 0.0, False
    row = found.row
    ns = row.exposed_ns * found.each / row.count
    return row.kind, row.bytes, row.group_size, row.range, ns, found.is_single


def judge(request: Request) -> Result:
    """Make a job, have it reported, and compare."""
    gc.disable()  # millions of objects live until the end: to look for garbage among them takes half of the time
    try:
        return _judged(request)
    finally:
        gc.enable()


def _judged(request: Request) -> Result:
    case = request.case()
    t = case.training
    recordings = run(t)
    step_ns = mean_step_ns(recordings)
    summary = summary_of(recordings, case.tool, python=t.stacks)
    result = Result(case.name, case.tool, case.bound, t.kind, t.ranks, step_ns)
    left_out = {"low_ns", "high_ns", "at_ns", "at_rank"}
    dumped = [f.model_dump() for f in summary.findings]
    result.findings = [{name: value for name, value in each.items() if name not in left_out} for each in dumped]
    if summary.replay is not None:
        result.measured_ns, result.replay_error = summary.replay.step_ns, summary.replay.error
    result.broken = broken_promises(summary)
    truth = Truth(t, step_ns)
    result.faults = [_fault(planted, case, summary.findings, step_ns) for planted in case.planted]
    result.in_order = _in_order(result.faults, summary.findings, case, truth)
    result.false = _false(summary.findings, case, truth)
    if summary.replay is not None:
        result.unexplained_ns = summary.replay.unexplained_ns
        result.own_ns = run_step_ns(_without_all(case, summary.findings))
        launching = sum(found.lost_ns for found in summary.findings if found.cause == "tiny-kernels")
        result.unexplained_ns = (result.unexplained_ns or 0) + launching
        for what in summary.replay.what_ifs:
            change, per = CHANGES.get(what.name, (None, 1))
            if change is not None and not (t.contended and what.name.startswith("no-")):
                result.what_ifs[what.name] = (what.step_ns, run_step_ns(change(t)) / per)
    return result


class Truth:
    """What a job loses to each cause, by the simulation."""

    def __init__(self, training: Training, step_ns: float) -> None:
        self._training, self.step_ns = training, step_ns
        self._known: dict[str, float] = {}

    def lost_ns(self, cause: str) -> float:
        """The step less the step of the same program without any of this cause."""
        if cause not in self._known:
            change = WITHOUT.get(cause)
            without = self.step_ns if change is None else run_step_ns(change(self._training))
            self._known[cause] = self.step_ns - without
        return self._known[cause]


def _without_all(case: Case, findings: Sequence[TimeLost]) -> Training:
    """The program without what was planted and told, and without each other cause that is told, but for its own
    launching: most of that is hidden behind other ranks and messages, and only the idle time of devices is told."""
    t = case.training
    told = {found.cause for found in findings}
    for planted in case.planted:
        if told & {*planted.causes, NOT_RECORDED}:
            t = planted.without(t)
    planted_causes = {cause for planted in case.planted for cause in planted.causes}
    for cause in sorted(told - planted_causes - {"tiny-kernels"}):
        t = WITHOUT[cause](t) if cause in WITHOUT else t
    return t


def _fault(planted: Planted, case: Case, findings: Sequence[TimeLost], step_ns: float) -> FaultResult:
    t = case.training
    before_ns = step_ns if planted.before is same else run_step_ns(planted.before(t))
    lost = before_ns - run_step_ns(planted.without(t))
    unmarked = planted.marks and case.tool == "nsys" and not t.ranges
    causes = (*planted.causes, NOT_RECORDED) if unmarked else planted.causes
    result = FaultResult(planted.name, causes, lost)
    for place, found in enumerate(findings):
        if found.cause in causes and (not result.cause or not result.right):
            ranks = _of_its_ranks(planted, found, case)
            where = _is_there(planted, found, case)
            if not result.cause or (ranks and where):
                result.place, result.told_ns = place, found.lost_ns
                result.cause, result.ranks, result.where = True, ranks, where
    return result


def _of_its_ranks(planted: Planted, found: TimeLost, case: Case) -> bool:
    """The ranks that have it. Beside a fault of one rank, for which the others wait, only that rank's part costs
    time."""
    if tuple(found.ranks) == planted.ranks:
        return True
    beside = [other.ranks for other in case.planted if len(other.ranks) < len(planted.ranks)]
    return tuple(found.ranks) in beside


def _is_there(planted: Planted, found: TimeLost, case: Case) -> bool:
    t = case.training
    right = not planted.phases or not t.ranges or found.phase in planted.phases
    if planted.function and t.stacks and case.tool == "kineto":
        named = f"{found.what} {found.where.function if found.where else ''}"
        right = right and planted.function in named
    if planted.every > 1:
        right = right and found.every == planted.every
    return right


def _in_order(faults: Sequence[FaultResult], findings: Sequence[TimeLost], case: Case, truth: Truth) -> bool:
    """Whether the planted faults are in the order of their losses, and before them are only the program's own causes,
    which lose more."""
    due = [f for f in faults if f.place is not None and f.own_ns >= SURE * truth.step_ns]
    told = sorted(due, key=lambda f: f.place or 0)
    for a, b in pairwise(told):
        if a.own_ns < 0.9 * b.own_ns:
            return False
    if not told:
        return True
    planted = {cause for f in faults for cause in f.causes}
    before = findings[: told[0].place]
    return all(f.cause in planted or truth.lost_ns(f.cause) > 0.9 * told[0].own_ns for f in before)


def _false(findings: Sequence[TimeLost], case: Case, truth: Truth) -> list[str]:
    """Jobs of what the program does not lose: causes that are neither planted nor its own."""
    planted = {cause for p in case.planted for cause in p.causes}
    unmarked = case.tool == "nsys" and not case.training.ranges  # nothing says what data loading is
    if any(p.marks for p in case.planted) and unmarked:
        planted.add(NOT_RECORDED)
    return [
        f"{found.cause} {found.lost_ns / 1e6:.2f} ms, {truth.lost_ns(found.cause) / 1e6:.2f} in the simulation"
        for found in findings
        if found.cause not in planted
        and truth.lost_ns(found.cause) < 0.5 * found.lost_ns
        and not (unmarked and found.cause == NOT_RECORDED and truth.lost_ns("data-stall") > 0.5 * found.lost_ns)
    ]


@dataclass
class StartResult:
    """One job with a start. told_ns, own_ns: what was to be told, in the report and in the simulation. wrong: what is
    not as in the simulation; empty: all is right."""

    name: str
    told_ns: int | None = None
    own_ns: int = 0
    wrong: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def error(self) -> float | None:
        """Of the time; None if it was not told."""
        return None if self.told_ns is None or not self.own_ns else self.told_ns / self.own_ns - 1


def judge_start(request: StartRequest) -> StartResult:
    """Make a job with a start, have it reported, and compare: the time before the first step with its parts, or the
    first use; and that nothing else is told for that time."""
    case = request.case()
    recordings = run(case.training)
    summary, usual = (_start_summary(t, case) for t in (case.training, case.without))
    found = answer(summary)
    result = StartResult(case.name, said=[*found.first, *found.rest])
    if case.told == "before":
        _judge_before(result, case, summary, recordings)
    elif case.told == "first-use":
        result.own_ns = _makespan(recordings) - _makespan(run(case.without))
        _judge_first(result, summary, "first-use")
    elif case.told == "allocation":
        result.own_ns = _makespan(recordings) - _makespan(run(case.without))
        if summary.steps.source.startswith("range"):  # the phases' ranges tell the steps: a loss is one's
            result.own_ns //= case.training.steps
        _judge_first(result, summary, "allocation")
    allowed = () if case.told == "nothing" else (case.told,)
    result.wrong += _not_its_own(case, summary, usual, allowed)
    return result


def _start_summary(t: Training, case: StartCase) -> Summary:
    return summary_of(run(t), case.tool, python=t.stacks)


def _makespan(recordings: Sequence[Recording]) -> int:
    return max(recording.end for recording in recordings)


def _judge_first(result: StartResult, summary: Summary, cause: str) -> None:
    told = [f for f in summary.findings if f.cause == cause]
    result.told_ns = told[0].lost_ns if told else None
    if cause == "first-use":  # what comes before the first launch of the first pass lies before the first step
        before = max(row.first_use_ns for row in summary.before_steps)
        result.told_ns = (result.told_ns or 0) + before
    if result.error is None or abs(result.error) > NEAR_START:
        result.wrong.append(f"{cause} {result.told_ns} for {result.own_ns}")
    if cause == "first-use" and told and summary.findings[0] is not told[0]:
        result.wrong.append("first use is not first")


def _judge_before(result: StartResult, case: StartCase, summary: Summary, recordings: Sequence[Recording]) -> None:
    t, start = case.training, case.training.start
    assert start is not None
    begins = [r.steps[0].start for r in run(replace(t, marked=True))]
    rows = summary.before_steps
    result.own_ns, result.told_ns = max(begins), max((row.duration_ns for row in rows), default=None)
    if result.error is None or abs(result.error) > NEAR_START:
        result.wrong.append(f"before the first step {result.told_ns} for {result.own_ns}")
        return
    named = t.stacks and case.tool == "kineto"
    expected = {
        "copies_ns": round(start.model_bytes / start.gb_per_s),
        "first_use_ns": start.context_ns,
        "meeting_ns": start.meeting_ns,
        "compile_ns": start.compile_ns if case.tool == "kineto" else 0,
        "capture_ns": start.capture_ns,
        "imports_ns": start.imports_ns if named else 0,
        "model_ns": start.model_ns if named else 0,
    }
    expected["unknown_ns"] = begins[0] - sum(expected.values())
    for part, ns in expected.items():
        told = int(getattr(rows[0], part))
        if abs(told - ns) > max(NEAR_START * ns, SMALL_START * begins[0]):
            result.wrong.append(f"{part} {told} for {ns}")
    large = max(begins) > 0.25 * max(recording.end for recording in recordings)
    if large and not any(" lie before " in text for text in result.said):
        result.wrong.append("the time before the first step is not told")


def _not_its_own(case: StartCase, summary: Summary, usual: Summary, told: Sequence[str]) -> list[str]:
    """Findings of more time than the same program without its start has, by its own report or by the simulation."""
    step_ns = summary.replay.step_ns if summary.replay else 0
    lost = {f.cause: f.lost_ns for f in usual.findings}
    found = []
    for f in summary.findings:
        more = f.lost_ns - max(NEAR_START * f.lost_ns, SMALL_START * step_ns)
        if f.cause not in told and more > lost.get(f.cause, 0) and more > _own_loss(case.without, f.cause):
            found.append(f"{f.cause} {f.lost_ns} for {lost.get(f.cause, 0)}")
    return found


def _own_loss(t: Training, cause: str) -> float:
    """What a program loses to a cause, in a step; without marked steps in all of it."""
    without = WITHOUT[cause](t) if cause in WITHOUT else t
    if t.marked:
        return run_step_ns(t) - run_step_ns(without)
    return _makespan(run(t)) - _makespan(run(without))
