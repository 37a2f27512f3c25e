"""Where a job's elapsed time went: the time lines of its ranks, and the one of the job that they make. Knows no file.

The rule: at each moment the job is where the rank is that is furthest behind (before its process, before its first
step, in its steps, after them), so that the parts add up to the elapsed time. Of ranks that are equally far, one that
waits for others counts last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.summary import CodeLocation, JobImport, JobTime, JobTimePart, LineShare
from harness.common.run_folder.job_parts import (
    CHECKPOINTS,
    COMPILATION,
    CONVERSION,
    DATA,
    ENDING,
    EVALUATION,
    FIRST_STEP,
    IMPORTS,
    LAUNCH,
    MEETING,
    MODEL,
    OTHER,
    PARTS,
    PROLOG,
    START,
    STEPS,
    STUCK,
    TAIL,
    TRACES,
)

I64 = NDArray[np.int64]
LEAST_IMPORT_NS = 500_000_000
_BEFORE_STEPS = (IMPORTS, MEETING, MODEL, DATA, COMPILATION, FIRST_STEP, TRACES)
_BESIDE_STEPS = (COMPILATION, EVALUATION, CHECKPOINTS, TRACES)
_SLURMS_CLOCK_NS = 1_000_000_000  # Slurm tells whole seconds
_ENDED = 99  # of a rank's progress
_ORDER = (
    LAUNCH, STUCK, IMPORTS, OTHER, DATA, MODEL, COMPILATION, CHECKPOINTS, EVALUATION, TRACES, TAIL, FIRST_STEP, STEPS,
    MEETING,
)  # fmt: skip


@dataclass(frozen=True)
class Stretch:
    """A rank's main thread is in one part from begin to end, unix time. packages: of an import, the outermost first."""

    begin_ns: int
    end_ns: int
    part: str
    where: CodeLocation | None = None
    packages: tuple[str, ...] = ()

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns


class TimedStep(NamedTuple):
    """A step by the training's own clock."""

    begin_ns: int
    duration_ns: int
    data_ns: int


@dataclass(frozen=True)
class RankRecord:
    """What a rank recorded. began_ns: its process; begun_ns: its record. changes: in order of time; part "": none is
    known. end_ns: None: it wrote no end. between: the lines of its steps' time outside of all phases."""

    rank: int
    node: int
    began_ns: int
    begun_ns: int
    changes: Sequence[Stretch]
    steps: Sequence[TimedStep]
    end_ns: int | None
    between: Sequence[LineShare] = ()


@dataclass(frozen=True)
class JobRecord:
    """The job's begin and end, and those of its nodes by their numbers. None: not known. allocated_ns: when Slurm gave
    it its nodes, to a second. stuck_ns: since when it was stuck, to its end."""

    begin_ns: int | None
    end_ns: int | None
    submitted_ns: int | None = None
    nodes: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    allocated_ns: int | None = None
    stuck_ns: int | None = None


class RankTimeLine(NamedTuple):
    """A rank's time line: stretches without gaps, and when it began its steps and had ended them; None: it has none."""

    rank: int
    stretches: list[Stretch]
    first_ns: int | None
    last_ns: int | None


def rank_line(record: RankRecord, begin_ns: int, end_ns: int) -> RankTimeLine:
    """The time line of a rank from its node's start to its own end."""
    until = min(record.end_ns or end_ns, end_ns)
    begun = min(max(record.begun_ns, begin_ns), until)
    first = record.steps[0].begin_ns if record.steps else None
    last = max(step.begin_ns + step.duration_ns for step in record.steps) if record.steps else None
    line = [Stretch(begin_ns, begun, LAUNCH)]
    before_end = until if first is None else min(max(first, begun), until)
    line += [_renamed(each, OTHER) for each in _clipped(record.changes, begun, before_end)]
    if first is not None and last is not None:
        over = min(max(last, before_end), until)
        line += _training(record, before_end, over)
        line += [_renamed(each, TAIL) for each in _clipped(record.changes, over, until)]
    return RankTimeLine(record.rank, [each for each in line if each.ns > 0], first, last)


def _stuck_since(line: RankTimeLine, since_ns: int) -> RankTimeLine:
    """The line of a rank of a run that was stuck from then on."""
    before = [replace(each, end_ns=min(each.end_ns, since_ns)) for each in line.stretches if each.begin_ns < since_ns]
    last = [
        replace(each, begin_ns=max(each.begin_ns, since_ns), part=STUCK)
        for each in line.stretches
        if each.end_ns > since_ns
    ]
    return line._replace(stretches=before + last)


def _renamed(stretch: Stretch, unknown: str) -> Stretch:
    """With the part that a stretch of no known part has here. After the steps only some parts are told apart."""
    kept = stretch.part in (_BESIDE_STEPS if unknown == TAIL else _BEFORE_STEPS)
    return Stretch(stretch.begin_ns, stretch.end_ns, stretch.part if kept else unknown, stretch.where, stretch.packages)


def _clipped(changes: Sequence[Stretch], begin_ns: int, end_ns: int) -> list[Stretch]:
    """What is between two moments, the first stretch from the start on."""
    if end_ns <= begin_ns:
        return []
    inside = [each for each in changes if each.end_ns > begin_ns and each.begin_ns < end_ns]
    if not inside:
        return [Stretch(begin_ns, end_ns, "")]
    found = []
    for i, each in enumerate(inside):
        start = begin_ns if i == 0 else max(each.begin_ns, begin_ns)
        stop = end_ns if i == len(inside) - 1 else min(each.end_ns, end_ns)
        found.append(Stretch(start, stop, each.part, each.where, each.packages))
    return found


def _training(record: RankRecord, begin_ns: int, end_ns: int) -> list[Stretch]:
    """The steps with what passes beside them, and what the first one takes longer than the others."""
    every = _clipped(record.changes, begin_ns, end_ns)
    beside = [each for each in every if each.part in _BESIDE_STEPS]
    line: list[Stretch] = []
    at = begin_ns
    for each in beside:
        line += [Stretch(at, each.begin_ns, STEPS), each]
        at = each.end_ns
    line.append(Stretch(at, end_ns, STEPS))
    line = [each for each in line if each.ns > 0]
    own = [_own(step, beside) for step in record.steps]
    if len(own) > 1:
        usual, data = median(own[1:]), median(step.data_ns for step in record.steps[1:])
    else:
        usual, data = 0, 0
    longer = max(round(own[0] - usual), 0)
    loading = min(max(round(record.steps[0].data_ns - data), 0), longer)
    places = _clipped(record.changes, begin_ns, min(begin_ns + record.steps[0].duration_ns, end_ns))
    line = _first(line, loading, DATA, _most([each for each in places if each.part == DATA]))
    others = [each for each in places if each.part not in (DATA, *_BESIDE_STEPS)]
    return _first(line, longer - loading, FIRST_STEP, _most(others))


def _own(step: TimedStep, beside: Sequence[Stretch]) -> int:
    """A step's time without what passes beside steps."""
    end = step.begin_ns + step.duration_ns
    taken = sum(max(min(each.end_ns, end) - max(each.begin_ns, step.begin_ns), 0) for each in beside)
    return step.duration_ns - taken


def _first(stretches: list[Stretch], ns: int, part: str, where: CodeLocation | None) -> list[Stretch]:
    """The line with the first nanoseconds of its steps in another part."""
    found: list[Stretch] = []
    for each in stretches:
        if each.part != STEPS or ns <= 0:
            found.append(each)
            continue
        taken = min(ns, each.ns)
        ns -= taken
        found.append(Stretch(each.begin_ns, each.begin_ns + taken, part, where))
        if taken < each.ns:
            found.append(Stretch(each.begin_ns + taken, each.end_ns, STEPS))
    return found


def _most(stretches: Iterable[Stretch]) -> CodeLocation | None:
    """The place with most time."""
    times: dict[tuple[str, int | None, str], int] = defaultdict(int)
    for each in stretches:
        if each.where is not None:
            times[each.where.file, each.where.line, each.where.function] += each.ns
    if not times:
        return None
    file, line, function = max(times, key=lambda key: times[key])
    return CodeLocation(file=file, line=line, function=function)


# -- the job -----------------------------------------------------------------------------------------------------------


def job_time(job_record: JobRecord, records: Sequence[RankRecord]) -> JobTime | None:
    """Where the job's elapsed time went; None: no rank recorded it, or nothing says when the job began and ended."""
    if not records:
        return None
    begin, end = job_record.begin_ns, job_record.end_ns
    begin = min(each.began_ns for each in records) if begin is None else begin
    end = max(each.end_ns or 0 for each in records) if end is None else end
    if end <= begin:
        return None
    lines = [rank_line(each, *_node_span(job_record, each, begin, end)) for each in records]
    if job_record.stuck_ns is not None:
        lines = [_stuck_since(line, job_record.stuck_ns) for line in lines]
    spent, late = _partition(job_record, lines, begin, end)
    own = {line.rank: _sums(line.stretches) for line in lines}
    late = _only_late(spent, late, own)
    if (prolog := _prolog_ns(job_record, begin)) >= _SLURMS_CLOCK_NS:
        spent[PROLOG] = prolog
        begin -= prolog
    elapsed = end - begin
    whole = _Whole(elapsed, lines, own, late)
    parts = [_part(part, spent[part], whole) for part in PARTS if spent.get(part)]
    return JobTime(
        elapsed_ns=elapsed,
        queue_ns=None if job_record.submitted_ns is None else max(begin - job_record.submitted_ns, 0),
        useful_share=spent.get(STEPS, 0) / elapsed,
        parts=parts,
        imports=imports_of(lines),
        lines_by_rank={each.rank: list(each.between) for each in records if each.between},
    )


def _prolog_ns(job_record: JobRecord, begin_ns: int) -> int:
    """From the allocation of the nodes, after the submission, to the job's script; 0: not known."""
    if job_record.allocated_ns is None or (job_record.submitted_ns or 0) > job_record.allocated_ns + _SLURMS_CLOCK_NS:
        return 0
    return max(begin_ns - max(job_record.allocated_ns, job_record.submitted_ns or 0), 0)


def _node_span(job_record: JobRecord, record: RankRecord, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """When a rank's node began and ended, inside of the job."""
    began, ended = job_record.nodes.get(record.node, (begin_ns, None))
    began = min(max(began, begin_ns), end_ns)
    return min(began, max(record.begun_ns, begin_ns)), min(max(ended or end_ns, began), end_ns)


def _sums(stretches: Iterable[Stretch]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for each in stretches:
        found[each.part] += each.ns
    return found


def _partition(
    job_record: JobRecord, lines: Sequence[RankTimeLine], begin_ns: int, end_ns: int
) -> tuple[dict[str, int], dict[int, int]]:
    """Nanoseconds of the job by part, which add up; and for how long each rank was the one that others waited for
    before it met them."""
    spent: dict[str, int] = defaultdict(int)
    late: dict[int, int] = defaultdict(int)
    ends = [at for line in lines for each in line.stretches for at in (each.begin_ns, each.end_ns)]
    ends += [at for span in job_record.nodes.values() for at in span if at is not None]
    borders = np.unique([begin_ns, end_ns, *ends])
    borders = borders[(borders >= begin_ns) & (borders <= end_ns)]
    moments, lengths = borders[:-1], np.diff(borders)
    first_node = min((span[0] for span in job_record.nodes.values()), default=begin_ns)
    keys = np.full((len(lines) + 1, len(moments)), _ENDED * 100, np.int64)
    keys[-1] = np.where(moments < first_node, -1, _ENDED * 100 - 1)  # the job itself: before and after its ranks
    last_node = max((span[1] or end_ns for span in job_record.nodes.values()), default=end_ns)
    waits = np.zeros(len(moments), bool)
    for row, line in enumerate(lines):
        own = _keys(line, moments)
        waits |= own % 100 == _ORDER.index(MEETING)
        keys[row] = own
    furthest = keys.argmin(axis=0)
    lowest = keys.min(axis=0)
    columns = (each.tolist() for each in (moments, lengths, furthest, lowest, waits))
    for moment, ns, row, key, waited in zip(*columns, strict=True):
        if row == len(lines):
            spent[START if key < 0 else ENDING if moment < last_node else CONVERSION] += ns
            continue
        part = _ORDER[key % 100]
        if part == OTHER and waited:
            part = MEETING
            late[lines[row].rank] += ns
        spent[part] += ns
    return spent, late


def _only_late(spent: dict[str, int], late: dict[int, int], sums_by_rank: dict[int, dict[str, int]]) -> dict[int, int]:
    """How long others waited for a rank because of what it alone did: what all ranks do is other code, also where one
    of them does it later."""
    usual = min((sums.get(OTHER, 0) for sums in sums_by_rank.values()), default=0)
    found = {}
    for rank, ns in late.items():
        found[rank] = min(ns, sums_by_rank[rank].get(OTHER, 0) - usual)
        spent[MEETING] -= ns - found[rank]
        spent[OTHER] += ns - found[rank]
    return found


def _keys(line: RankTimeLine, moments: I64) -> I64:
    """For each moment how far the rank is, and its part: 100 × progress + index into the order."""
    starts = np.array([each.begin_ns for each in line.stretches], np.int64)
    ends = np.array([each.end_ns for each in line.stretches], np.int64)
    orders = np.array([_ORDER.index(each.part) for each in line.stretches], np.int64)
    row = np.searchsorted(starts, moments, side="right") - 1
    known = (row >= 0) & (moments < np.append(ends, 0)[row])
    order = np.where(known, np.append(orders, 0)[row], 0)
    first = line.first_ns if line.first_ns is not None else np.iinfo(np.int64).max
    last = line.last_ns if line.last_ns is not None else np.iinfo(np.int64).max
    progress = 1 + (moments >= first).astype(np.int64) + (moments >= last)
    progress = np.where(order == _ORDER.index(LAUNCH), 0, progress)
    after = moments >= (ends[-1] if len(ends) else 0)
    return np.where(known, 100 * progress + order, np.where(after, _ENDED * 100, 0))


class _Whole(NamedTuple):
    """The job that a part is of. sums_by_rank: of each rank, nanoseconds by part. late: as `_partition` gives it."""

    elapsed_ns: int
    lines: Sequence[RankTimeLine]
    sums_by_rank: dict[int, dict[str, int]]
    late: dict[int, int]


def _part(part: str, ns: int, whole: _Whole) -> JobTimePart:
    share = ns / whole.elapsed_ns
    if part in (PROLOG, START, STUCK, ENDING, CONVERSION) or not whole.lines:
        return JobTimePart(part=part, duration_ns=ns, share=share)
    lines, own, late = whole.lines, whole.sums_by_rank, whole.late
    times = {rank: sums.get(part, 0) for rank, sums in own.items()}
    rank = max(times, key=lambda each: (times[each], -each))
    rank_ns, shown = times[rank], part
    if part == MEETING and 2 * sum(late.values()) > ns:  # the rank that came last, and where it was until then
        rank = max(late, key=lambda each: late[each])
        rank_ns, shown = own[rank].get(OTHER, 0), OTHER
    line = next(each for each in lines if each.rank == rank)
    stretches = [each for each in line.stretches if each.part == shown]
    what = next((each.package for each in imports_of([line])), None) if part == IMPORTS else None
    return JobTimePart(
        part=part, duration_ns=ns, share=share, rank=rank, rank_ns=rank_ns, what=what, where=_most(stretches)
    )


def imports_of(lines: Sequence[RankTimeLine]) -> list[JobImport]:
    """The packages whose import took long in a rank, of each the rank in which it took longest."""
    longest: dict[str, JobImport] = {}
    for line in lines:
        for package, stretches in _by_package(line.stretches).items():
            ns = sum(each.ns for each in stretches)
            if ns >= LEAST_IMPORT_NS and (package not in longest or longest[package].duration_ns < ns):
                where = _most(stretches)
                longest[package] = JobImport(package=package, duration_ns=ns, rank=line.rank, where=where)
    return sorted(longest.values(), key=lambda each: -each.duration_ns)


def _by_package(stretches: Iterable[Stretch]) -> dict[str, list[Stretch]]:
    """A rank's imports by package. What takes less than LEAST_IMPORT_NS is a part of what imports it."""
    found: dict[tuple[str, ...], list[Stretch]] = defaultdict(list)
    for each in stretches:
        if each.part == IMPORTS and each.packages:
            found[each.packages].append(each)
    while True:
        by_last: dict[str, int] = defaultdict(int)
        for chain, several in found.items():
            by_last[chain[-1]] += sum(each.ns for each in several)
        short = [chain for chain in found if len(chain) > 1 and by_last[chain[-1]] < LEAST_IMPORT_NS]
        if not short:
            break
        deepest = max(short, key=len)
        found[deepest[:-1]] += found.pop(deepest)
    named: dict[str, list[Stretch]] = defaultdict(list)
    for chain, several in found.items():
        named[chain[-1]] += several
    return named
