"""Which processes form a job, and how far the clocks of its hosts are apart, by the ends of collectives they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import PurePath
from statistics import median

import numpy as np

from harness.analysis.job.matching import MEETING_SHARE, NAMELESS, JobCollectives, MatchedGroup, match_collectives
from harness.analysis.job.numbered import jobs_in_folders, largest_group, numbered_jobs
from harness.analysis.process.before_steps import END
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import unmeasured
from harness.analysis.process.part import RankPart, collectives_of, in_order, used_a_gpu
from harness.analysis.process.view import views
from harness.analysis.summary import Clock, Problem, problem_texts
from harness.common.display.format import duration
from harness.traces.trace import I64, Trace

APART_NS = 1_000_000
# collectives that end on no rank before all ranks have begun them
NEED_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_FEWEST = 5  # collectives that two files must share: fewer may agree by chance
_MOST_SHARED = 0.5  # of the collectives of the file with fewer of them
_ENDS_APART_NS = 200_000  # of one collective on two ranks of a host; NCCL's lie within 20 µs
_HOSTS_APART_NS = 1_000_000_000  # clocks of two hosts: they are set by the network's time
_ENDS_SCATTER_NS = 100_000  # around their usual distance
_ENDS_SCATTER = 0.02  # the same, of the median distance of two collectives


def clocks_of(traces: Sequence[Trace]) -> dict[str, Clock]:
    """The clocks of traces that were not measured, each with its offset from the first trace's."""
    parts = [unmeasured(view, load_rules()) for trace in traces for view in views(trace)]
    several = len({part.clock for part in parts}) > 1
    return align_clocks(parts, match_collectives(parts, None).matched if several else [])


def align_clocks(parts: Sequence[RankPart], matched: list[MatchedGroup]) -> dict[str, Clock]:
    """Each clock's offset from the first part's, by the median difference of the ends of shared collectives.

    `residual_ns` is the median absolute deviation from that offset. A clock that shares no collective with an aligned
    clock is missing from the result."""
    if not parts:
        return {}
    first = parts[0].clock
    clocks = {first: Clock(host=first, offset_ns=0, residual_ns=0, collectives=0)}
    if len({part.clock for part in parts}) == 1:
        return clocks
    groups = [(m, _lines_by_clock(m)) for m in matched if m.end_ns.shape[1]]
    while found := _aligned_to(clocks, groups):
        clocks |= found
    return clocks


_Lines = dict[str, list[int]]  # clock -> its lines in a group's tables


def _lines_by_clock(m: MatchedGroup) -> _Lines:
    lines: _Lines = {}
    for i, clock in enumerate(m.clocks):
        lines.setdefault(clock, []).append(i)
    return lines


def _aligned_to(aligned: dict[str, Clock], groups: Sequence[tuple[MatchedGroup, _Lines]]) -> dict[str, Clock]:
    """The clocks that share a collective with an aligned clock and are not aligned themselves."""
    differences: dict[str, list[I64]] = {}
    for m, lines in groups:
        others = sorted(i for clock, own in lines.items() if clock in aligned for i in own)
        waiting = {clock: own for clock, own in lines.items() if clock not in aligned}
        if others and waiting:
            shift = np.array([aligned[m.clocks[i]].offset_ns for i in others])[:, None]
            for clock, own in _differences(m.end_ns, waiting, m.end_ns[others] - shift):
                differences.setdefault(clock, []).append(own)
    return {clock: _clock(clock, np.concatenate(differences[clock])) for clock in sorted(differences)}


def _clock(host: str, seen: I64) -> Clock:
    offset = int(seen[0]) + round(float(np.median(seen - seen[0])))
    residual = round(float(np.median(np.abs(seen - offset))))
    return Clock(host=host, offset_ns=offset, residual_ns=residual, collectives=len(seen))


def _differences(end_ns: I64, waiting: _Lines, others: I64) -> Iterator[tuple[str, I64]]:
    """Per clock the median of its lines minus the median of `others`, per column. A float64 rounds integers near
    1.7·10¹⁸, so integers are subtracted before the medians are computed. Clocks of as many ranks are computed at once.
    """
    base = others[0]
    usual = np.median(others - base, axis=0)
    alike: dict[int, list[str]] = {}
    for clock, lines in waiting.items():
        alike.setdefault(len(lines), []).append(clock)
    for clocks in alike.values():
        own = end_ns[[waiting[clock] for clock in clocks]]  # clock, rank, collective
        far = own[:, 0, 0] - others[0, 0]
        left = np.median(own - far[:, None, None] - base, axis=1) - usual
        yield from zip(clocks, far[:, None] + np.rint(left).astype(np.int64), strict=True)


def group(parts: Iterable[RankPart]) -> list[list[RankPart]]:
    """Parts per job, in a canonical order.

    The parts of one run are one job. Other files are one job if they record the same world size and every rank once,
    either all files together or the files of one folder. Files without a world size are one job if their ranks differ
    and were in the same collectives at the same time, or if they or their folders are numbered. Each remaining file
    is a job of its own; those without work of a GPU, such as a launcher's, come last. A process without a rank belongs
    to the job of its file's ranks; if it only helps them, it is left out, with a finding."""
    runs: dict[str, list[RankPart]] = {}
    worlds: dict[int, list[RankPart]] = {}
    files: dict[str, list[RankPart]] = {}
    parts = in_order(parts)
    numbered = [*numbered_jobs(parts), *jobs_in_folders(parts)]
    taken = {(part.source.path, part.source.pid) for job in numbered for part in job}
    for part in parts:
        if (part.source.path, part.source.pid) in taken:
            continue
        size = part.source.world_size
        if part.run is not None:
            runs.setdefault(part.run, []).append(part)
        elif size is not None and size > 1 and part.source.rank is not None:
            worlds.setdefault(size, []).append(part)
        else:
            files.setdefault(part.source.path, []).append(part)
    jobs = [*numbered, *(job for world in worlds.values() for job in _worlds(world))]
    jobs += _by_collectives(files)
    of_file = {part.source.path: job for job in jobs for part in job}
    files = _of_unknown_ranks(files)
    for path, rankless in files.items():
        if path in of_file:
            of_file[path] += rankless
        else:
            jobs.append(rankless)
    complete = map(_without_helpers, [*runs.values(), *jobs])
    return sorted(complete, key=lambda job: (not any(map(used_a_gpu, job)), job[0].source.path))


def _of_unknown_ranks(files: dict[str, list[RankPart]]) -> dict[str, list[RankPart]]:
    """The files; a doubt at each of several that are ranks by their collectives, and do not tell which."""
    alone = {path: parts[0] for path, parts in files.items() if len(parts) == 1 and parts[0].source.rank is None}
    ranks = [path for path, part in alone.items() if largest_group(part) > 1]
    said = f"collectives of {len(ranks)} files name other ranks, and nothing says which rank a file is"
    doubt = Problem.doubt(problem_texts.RANKS_UNKNOWN, said)
    return files | {path: [_with_doubt(alone[path], doubt)] for path in ranks if len(ranks) > 1}


def _with_doubt(part: RankPart, doubt: Problem) -> RankPart:
    return part.model_copy(update={"problems": [*part.problems, doubt]})


def _by_collectives(files: dict[str, list[RankPart]]) -> list[list[RankPart]]:
    """Takes out of the files those that are one job by their collectives, and gives these jobs, each part with the
    world size that its group has."""
    found: list[tuple[list[RankPart], int]] = []
    alone: list[RankPart] = []
    for parts in files.values():
        own = parts[0]
        if len(parts) > 1 or own.source.rank is None or own.source.world_size is not None or not own.collectives:
            continue
        for job, size in found:
            if own.source.rank not in {part.source.rank for part in job} and _shared_world(job[0], own) == size:
                job.append(own)
                break
        else:
            pairs = ((other, _shared_world(other, own)) for other in alone if other.source.rank != own.source.rank)
            other, size = next(((other, size) for other, size in pairs if size), (own, 0))
            if size:
                found.append(([other, own], size))
                alone.remove(other)
            else:
                alone.append(own)
    for job, _ in found:
        for part in job:
            del files[part.source.path]
    return [[_of_world(part, size) for part in in_order(job)] for job, size in found]


def _of_world(part: RankPart, size: int) -> RankPart:
    return part.model_copy(update={"source": part.source.model_copy(update={"world_size": size})})


def _shared_world(a: RankPart, b: RankPart) -> int:
    """How many ranks there are at least, by the largest group in which two ranks, each in a file of its own, were in
    the same collectives at the same time; 0: nothing shows that."""
    least = max(_FEWEST, _MOST_SHARED * min(len(collectives_of(a).key), len(collectives_of(b).key)))
    found = 0
    for m in match_collectives([a, b], None).matched:
        sizes = _sizes(a, m) | _sizes(b, m)
        members = m.group.ranks or tuple(range(max(sizes) or 0) if len(sizes) == 1 else ())
        if len(m.parts) == 2 and len(m.key) >= least and {a.source.rank, b.source.rank} <= {*members} and _met(m):
            found = max(found, len(members), max(members) + 1)
    return found


def _sizes(part: RankPart, m: MatchedGroup) -> set[int]:
    """The sizes that a part recorded of this group; 0: none."""
    own = (key for key in collectives_of(part).keys if (key.group, key.ranks) == (m.group.name, m.group.ranks))
    return {key.group_size or 0 for key in own}


def _met(m: MatchedGroup) -> bool:
    """Whether the collectives of two parts were the same ones: they end together, on one host at the same moment."""
    apart = m.end_ns[1] - m.end_ns[0]
    offset = int(apart[0]) + round(float(np.median(apart - apart[0])))
    hosts = {part.source.host for part in m.parts}
    most = _ENDS_APART_NS if len(hosts) == 1 and None not in hosts else _HOSTS_APART_NS
    between = float(np.median(np.diff(np.sort(m.end_ns[0]))))
    scatter = float(np.median(np.abs(apart - offset)))
    begun = (m.start_ns - np.array([[0], [offset]])).max(axis=0) <= (m.end_ns - np.array([[0], [offset]])).min(axis=0)
    together = float(begun.mean()) >= MEETING_SHARE
    return abs(offset) <= most and scatter <= max(_ENDS_SCATTER_NS, _ENDS_SCATTER * between) and together


def _without_helpers(rank_parts: list[RankPart]) -> list[RankPart]:
    """The job without processes that have no rank although others of their file have one: a data loader on the GPU is
    not a rank, and its numbers are not the training's. A process with steps may be a rank while a rank is missing."""
    size = max((part.source.world_size or 0 for part in rank_parts), default=0)
    ranks = {part.source.rank for part in rank_parts} - {None}
    files_with_ranks = {part.source.path for part in rank_parts if part.source.rank is not None}
    complete = 0 < size <= len(ranks)
    rest: list[RankPart] = []
    helpers: list[RankPart] = []
    for part in rank_parts:
        is_rank = part.source.rank is not None or part.source.path not in files_with_ranks
        may_be = bool(part.steps.durations_ns) and not complete
        (rest if is_rank or may_be else helpers).append(part)
    if not helpers:
        return rank_parts
    found = [*rest[0].problems, *map(_left_out, helpers)]
    return [rest[0].model_copy(update={"problems": found}), *rest[1:]]


def _left_out(helper: RankPart) -> Problem:
    kernel_ns = sum(row.duration_ns for device in helper.devices for row in device.kinds)
    where = ", ".join(str(device.device) for device in helper.devices)
    evidence = (
        f"process {helper.source.pid} ({PurePath(helper.source.path).name}): "
        f"{kernel_ns / 1e6:.2f} ms of work on device {where}"
    )
    return Problem.remark(problem_texts.NO_RANK, evidence)


def _worlds(parts: list[RankPart]) -> list[list[RankPart]]:
    """Parts of one world size, split until every rank occurs once in each job: by folder, then by what was recorded at
    the same time or of the same steps (a profiler that records again and again). What nothing tells apart is a job for
    each file, of which it is not known which ranks are missing."""
    if _ranks_once(parts):
        return [parts]
    folders: dict[PurePath, list[RankPart]] = {}
    for part in parts:
        folders.setdefault(PurePath(part.source.path).parent, []).append(part)
    jobs: list[list[RankPart]] = []
    for folder in folders.values():
        found = [folder]
        for split in (_by_time, _by_steps):
            if not all(map(_ranks_once, found)):
                found = split(folder)
        jobs += found if all(map(_ranks_once, found)) else _each_file(folder)
    return jobs


def _by_time(parts: Sequence[RankPart]) -> list[list[RankPart]]:
    """Parts that were recorded at the same time; all together, where a clock is not known."""
    if any(part.epoch_ns is None for part in parts):
        return [[*parts]]
    spans = [((p.epoch_ns or 0) + p.window_start_ns, (p.epoch_ns or 0) + p.window_end_ns, p) for p in parts]
    jobs: list[list[RankPart]] = []
    until_ns = -1
    for begin_ns, end_ns, part in sorted(spans, key=lambda span: (span[0], span[2].key)):
        if begin_ns >= until_ns:
            jobs.append([])
        jobs[-1].append(part)
        until_ns = max(until_ns, end_ns)
    return [in_order(job) for job in jobs]


def _by_steps(parts: Sequence[RankPart]) -> list[list[RankPart]]:
    """Parts whose steps have the same numbers."""
    jobs: dict[tuple[int, ...], list[RankPart]] = {}
    for part in parts:
        jobs.setdefault(tuple(part.steps.numbers), []).append(part)
    return [*jobs.values()]


def _each_file(parts: Sequence[RankPart]) -> list[list[RankPart]]:
    files: dict[str, list[RankPart]] = {}
    for part in parts:
        files.setdefault(part.source.path, []).append(part)
    counts = Counter(part.source.rank for part in parts)
    rank, count = max(counts.items(), key=lambda item: item[1])
    said = f"rank {rank} has {count} recordings, and nothing tells which files are of one job"
    return [[_unlike(part, said) for part in file] for file in files.values()]


def _unlike(part: RankPart, said: str) -> RankPart:
    source = part.source.model_copy(update={"world_size": None})
    doubt = Problem.doubt(problem_texts.RANK_TWICE, said)
    return _with_doubt(part.model_copy(update={"source": source}), doubt)


def _ranks_once(parts: Sequence[RankPart]) -> bool:
    return max(Counter(part.source.rank for part in parts).values()) == 1


def world_size(parts: Sequence[RankPart], by_training: int | None = None) -> int | None:
    """The world size that the files or the training record, else the number of different ranks of a run."""
    recorded = [size for size in (by_training, *(p.source.world_size for p in parts)) if size is not None]
    if recorded:
        return max(recorded)
    ranks = {part.source.rank for part in parts} - {None}
    return len(ranks) if parts[0].run is not None and ranks else None


def judge_job(
    parts: Sequence[RankPart], size: int | None, collectives: JobCollectives, clocks: dict[str, Clock]
) -> list[Problem]:
    """The problems about the recordings as one job."""
    return [
        *_nothing_but_start(parts),
        *_missing(parts, size),
        *_twice(parts),
        *_several_kinds_of_step(parts),
        *_windows_apart(parts, clocks),
        *_clock_doubts(parts, collectives, clocks),
        *_several_clocks(collectives),
        *_unmatched(collectives),
    ]


def _nothing_but_start(parts: Sequence[RankPart]) -> Iterator[Problem]:
    """No process ran a kernel: a process that only copies, beside others, is no set-up."""
    rows = [row for part in parts for row in part.rows.before_steps]
    kinds = {*problem_texts.KINDS} - {problem_texts.FIRST_USE}
    known = any(problem.what in kinds for part in parts for problem in part.problems)
    if not rows or known or any(row.ended_by != END for row in rows) or not all(part.events for part in parts):
        return
    longest = max(row.recorded_ns for row in rows)
    events = sum(part.events for part in parts)
    yield Problem.doubt(problem_texts.NO_KERNEL, f"{duration(longest)} recorded, with {events:,} copies and sets")


def _unmatched(collectives: JobCollectives) -> list[Problem]:
    """Groups with a name that do not match are a doubt; without names several groups are mixed, which is no fault."""
    reasons = sorted({r for r in collectives.reasons if not r.startswith("point-to-point")})
    return [(Problem.remark if NAMELESS in r else Problem.doubt)(problem_texts.UNMATCHED, r) for r in reasons]


def _missing(parts: Sequence[RankPart], size: int | None) -> Iterator[Problem]:
    ranks = {part.source.rank for part in parts} - {None}
    if size is not None and size > 1 and 0 < len(ranks) < size:
        missing = list(islice((rank for rank in range(size) if rank not in ranks), 9))
        shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        yield Problem.doubt(problem_texts.RANKS_MISSING, f"{len(ranks)} of {size} ranks were read; missing: {shown}")


def _twice(parts: Sequence[RankPart]) -> Iterator[Problem]:
    counts = Counter(part.source.rank for part in parts if part.source.rank is not None)
    for rank, count in sorted(counts.items()):
        if count > 1:
            yield Problem.doubt(problem_texts.RANK_TWICE, f"rank {rank}: {count} recordings in one job")


def _several_kinds_of_step(parts: Sequence[RankPart]) -> Iterator[Problem]:
    """Steps of one rank that are not the steps of another cannot be put into one distribution."""
    found = Counter(part.steps.source for part in parts if part.steps.durations_ns)
    if len(found) > 1:
        evidence = "; ".join(f"{source} in {count} of {len(parts)} processes" for source, count in found.items())
        yield Problem.doubt(problem_texts.UNLIKE_STEPS, evidence)


def _windows_apart(parts: Sequence[RankPart], clocks: dict[str, Clock]) -> Iterator[Problem]:
    """Ranks that recorded other steps: by the steps' numbers, since a slow rank begins each of them late. Without
    numbers, ranks that train together begin a step less than its length apart."""
    parts = [part for part in parts if part.steps.durations_ns]
    spans = sorted({(part.steps.numbers[0], part.steps.numbers[-1]) for part in parts if part.steps.numbers})
    if spans and all(first >= 0 for first, _ in spans):
        for (first, last), (later, end) in pairwise(spans):
            if first < later and last < end:  # else a rank counts fewer of the same steps
                evidence = f"steps {first} to {last} on one rank, {later} to {end} on another"
                yield Problem.doubt(problem_texts.UNEVEN, evidence)
                return
        return
    starts = [
        part.window_start_ns + part.steps.first_mark_ns + (part.epoch_ns or 0) - clocks[part.clock].offset_ns
        for part in parts
        if part.clock in clocks
    ]
    if len(starts) < 2:
        return
    apart_ns, step_ns = max(starts) - min(starts), median(median(part.steps.durations_ns) for part in parts)
    if apart_ns > step_ns:
        evidence = f"windows start {apart_ns / 1e6:.2f} ms apart, a step is {step_ns / 1e6:.2f} ms"
        yield Problem.doubt(problem_texts.UNEVEN, evidence)


def _several_clocks(collectives: JobCollectives) -> Iterator[Problem]:
    """Ranks with one recorded clock that really have several: a collective in which every member needs the data of all
    others ended on one rank before it began on another. Ends that lie apart are no sign: on a busy machine a rank waits
    for a core before it can record the end."""
    for m in collectives.matched:
        needed = np.isin(m.key, [i for i, key in enumerate(m.keys) if key.kind in NEED_ALL])
        if len(set(m.clocks)) != 1 or len(m.parts) < 2 or not needed.any():
            continue
        before = float(np.median(m.start_ns[:, needed].max(axis=0) - m.end_ns[:, needed].min(axis=0)))
        if before > APART_NS:
            apart = f"{before / 1e6:.2f} ms before it begins on another"
            evidence = f"{m.parts[0].clock}: a collective ends on one rank {apart}"
            yield Problem.doubt(problem_texts.CLOCKS_OF_ONE_HOST, evidence)
            return


def _clock_doubts(
    parts: Sequence[RankPart], collectives: JobCollectives, clocks: dict[str, Clock]
) -> Iterator[Problem]:
    missing = sorted({part.clock for part in parts} - set(clocks))
    if missing and len(parts) > 1:
        evidence = f"{len(missing)} clocks share no matched collective with the first rank's: {missing[0]}"
        yield Problem.doubt(problem_texts.CLOCKS_UNKNOWN, evidence)
    lengths = [
        int(m.end_ns[0, i] - m.start_ns[0, i]) for m in collectives.matched for i in range(min(m.end_ns.shape[1], 200))
    ]
    usual_ns = median(lengths) if lengths else None
    for clock in clocks.values():
        if usual_ns is not None and clock.residual_ns > usual_ns:
            evidence = f"{clock.host}: ends of collectives scatter by {clock.residual_ns / 1e3:.1f} µs after alignment"
            yield Problem.doubt(problem_texts.CLOCKS_ROUGH, evidence)
