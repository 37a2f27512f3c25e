"""Which measured processes form one job, and what is doubtful about them as a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from statistics import median

import numpy as np

from harness.analysis.job.matching import NAMELESS, JobCollectives
from harness.analysis.process.part import RankPart, merge_parts
from harness.analysis.summary import Clock, Finding, Verdict

APART_NS = 1_000_000
NEED_ALL = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)  # end nowhere before all are in


def group(parts: Iterable[RankPart]) -> list[list[RankPart]]:
    """Parts per job, in a canonical order.

    One run's parts are one job. Other files are one job when they tell the same world size and every rank
    once, all of them together or those of one folder. Whatever is left stands alone, file by file. A process
    without a rank belongs to the ranks that its file tells; one that only helps them is left out, and named."""
    runs: dict[str, list[RankPart]] = {}
    worlds: dict[int, list[RankPart]] = {}
    files: dict[str, list[RankPart]] = {}
    for part in merge_parts(list(parts)):
        size = part.source.world_size
        if part.run is not None:
            runs.setdefault(part.run, []).append(part)
        elif size is not None and size > 1 and part.source.rank is not None:
            worlds.setdefault(size, []).append(part)
        else:
            files.setdefault(part.source.path, []).append(part)
    jobs = [job for world in worlds.values() for job in _worlds(world)]
    of_file = {part.source.path: job for job in jobs for part in job}
    for path, rankless in files.items():
        if path in of_file:
            of_file[path] += rankless
        else:
            jobs.append(rankless)
    return sorted(map(_without_helpers, [*runs.values(), *jobs]), key=lambda job: job[0].source.path)


def _without_helpers(job: list[RankPart]) -> list[RankPart]:
    """The job without processes that have no rank where others of their file do: a data loader on the GPU is no
    rank, and its numbers are not the training's. One with steps may be, while a rank is missing."""
    told = max((part.source.world_size or 0 for part in job), default=0)
    ranks = {part.source.rank for part in job} - {None}
    telling = {part.source.path for part in job if part.source.rank is not None}
    complete = 0 < told <= len(ranks)
    rest: list[RankPart] = []
    helpers: list[RankPart] = []
    for part in job:
        is_rank = part.source.rank is not None or part.source.path not in telling
        may_be = bool(part.steps.durations_ns) and not complete
        (rest if is_rank or may_be else helpers).append(part)
    if not helpers:
        return job
    found = [*rest[0].findings, *map(_left_out, helpers)]
    return [rest[0].model_copy(update={"findings": found}), *rest[1:]]


def _left_out(helper: RankPart) -> Finding:
    kernel_ns = sum(row.duration_ns for device in helper.devices for row in device.kinds)
    where = ", ".join(str(device.device) for device in helper.devices)
    evidence = (
        f"process {helper.source.pid} ({PurePath(helper.source.path).name}): "
        f"{kernel_ns / 1e6:.2f} ms of work on device {where}"
    )
    what = "a process that is no rank used a GPU: its work is not counted"
    return Finding(severity=Verdict.GOOD, what=what, evidence=evidence)


def _worlds(parts: list[RankPart]) -> list[list[RankPart]]:
    """Parts of one world size, split until every rank occurs once in each job, or there is only one file in it."""
    if _ranks_once(parts):
        return [parts]
    jobs: list[list[RankPart]] = []
    for split_by in (_folder, _file):
        apart: dict[str, list[RankPart]] = {}
        for part in parts:
            apart.setdefault(split_by(part), []).append(part)
        parts = [part for job in apart.values() if not _ranks_once(job) for part in job]
        jobs += [job for job in apart.values() if _ranks_once(job) or split_by is _file]
    return jobs


def _folder(part: RankPart) -> str:
    return str(PurePath(part.source.path).parent)


def _file(part: RankPart) -> str:
    return part.source.path


def _ranks_once(parts: Sequence[RankPart]) -> bool:
    return max(Counter(part.source.rank for part in parts).values()) == 1


def world_size(parts: Sequence[RankPart], by_training: int | None = None) -> int | None:
    """What the files or the training say, else the number of ranks of a run that name themselves."""
    told = [part.source.world_size for part in parts if part.source.world_size is not None]
    told += [by_training] if by_training is not None else []
    if told:
        return max(told)
    named = {part.source.rank for part in parts} - {None}
    return len(named) if parts[0].run is not None and named else None


def judge_job(
    parts: Sequence[RankPart], size: int | None, collectives: JobCollectives, clocks: dict[str, Clock]
) -> list[Finding]:
    """What is wrong with the recordings as one job."""
    return [
        *_missing(parts, size),
        *_twice(parts),
        *_several_kinds_of_step(parts),
        *_windows_apart(parts, clocks),
        *_clock_doubts(parts, collectives, clocks),
        *_several_clocks(collectives),
        *_unmatched(collectives),
    ]


def _unmatched(collectives: JobCollectives) -> list[Finding]:
    """Named groups that do not fit are a doubt; without a name several groups are mixed, which is no
    fault."""
    what = "collectives cannot be matched across ranks"
    reasons = sorted({r for r in collectives.reasons if not r.startswith("point-to-point")})
    return [
        Finding(severity=Verdict.GOOD, what=what, evidence=r) if NAMELESS in r else _doubt(what, r)
        for r in reasons
    ]


def _doubt(what: str, evidence: str) -> Finding:
    return Finding(severity=Verdict.DOUBTFUL, what=what, evidence=evidence)


def _missing(parts: Sequence[RankPart], size: int | None) -> list[Finding]:
    ranks = {part.source.rank for part in parts} - {None}
    if size is None or size <= 1 or not ranks or len(ranks) >= size:
        return []
    missing = sorted(set(range(size)) - ranks)
    shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
    return [_doubt("ranks are missing", f"{len(ranks)} of {size} ranks were read; missing: {shown}")]


def _twice(parts: Sequence[RankPart]) -> list[Finding]:
    counts = Counter(part.source.rank for part in parts if part.source.rank is not None)
    return [
        _doubt("a rank was recorded more than once", f"rank {rank}: {count} recordings in one job")
        for rank, count in sorted(counts.items())
        if count > 1
    ]


def _several_kinds_of_step(parts: Sequence[RankPart]) -> list[Finding]:
    """Steps of one rank that are not the steps of another cannot be put into one distribution."""
    found = Counter(part.steps.source for part in parts if part.steps.durations_ns)
    if len(found) < 2:
        return []
    told = "; ".join(f"{source} in {count} of {len(parts)} processes" for source, count in found.items())
    return [_doubt("the ranks' steps were found in different ways", told)]


def _windows_apart(parts: Sequence[RankPart], clocks: dict[str, Clock]) -> list[Finding]:
    """Recording windows that start more than half a step apart are not about the same steps."""
    steps = [median(part.steps.durations_ns) for part in parts if part.steps.durations_ns]
    starts = [
        part.window_start_ns + (part.epoch_ns or 0) - clocks[part.clock].offset_ns
        for part in parts
        if part.clock in clocks and part.steps.durations_ns
    ]
    if len(starts) < 2 or max(starts) - min(starts) <= median(steps) / 2:
        return []
    apart, step = (max(starts) - min(starts)) / 1e6, median(steps) / 1e6
    return [
        _doubt(
            "ranks were not profiled over the same steps",
            f"windows start {apart:.2f} ms apart, a step is {step:.2f} ms",
        )
    ]


def _several_clocks(collectives: JobCollectives) -> list[Finding]:
    """Ranks that are taken to share a clock, and do not: a collective in which every member needs every other's data
    ended on one of them before it began on another. That its ends lie apart is no sign: on a busy machine a rank waits
    for a core before it can say that it ended."""
    for m in collectives.matched:
        needed = np.isin(m.key, [i for i, key in enumerate(m.keys) if key.kind in NEED_ALL])
        if len({part.clock for part in m.parts}) != 1 or len(m.parts) < 2 or not needed.any():
            continue
        before = float(np.median(m.start_ns[:, needed].max(axis=0) - m.end_ns[:, needed].min(axis=0)))
        if before > APART_NS:
            apart = f"{before / 1e6:.2f} ms before it begins on another"
            evidence = f"{m.parts[0].clock}: a collective ends on one rank {apart}"
            return [_doubt("ranks of one host seem to have several clocks: lateness is doubtful", evidence)]
    return []


def _clock_doubts(
    parts: Sequence[RankPart], collectives: JobCollectives, clocks: dict[str, Clock]
) -> list[Finding]:
    found: list[Finding] = []
    missing = sorted({part.clock for part in parts} - set(clocks))
    if missing and len(parts) > 1:
        what = "clocks cannot be compared"
        found.append(
            _doubt(
                what, f"{len(missing)} clocks share no matched collective with the first rank's: {missing[0]}"
            )
        )
    lengths = [
        int(m.end_ns[0, i] - m.start_ns[0, i])
        for m in collectives.matched
        for i in range(min(m.end_ns.shape[1], 200))
    ]
    for clock in clocks.values():
        if lengths and clock.residual_ns > median(lengths):
            evidence = f"{clock.host}: ends of collectives scatter by {clock.residual_ns / 1e3:.1f} µs after alignment"
            found.append(_doubt("clocks are aligned only roughly", evidence))
    return found
