"""Very many ranks merged as a tree: what each reducer has so far, of all jobs among its files, and the Summaries at the
root.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from harness.analysis.job.grouping import group
from harness.analysis.job.partial_merge import MOST_DETAILED, JobMerge, join_merges, merge_parts
from harness.analysis.job.summarise import summarise_merge
from harness.analysis.process.part import RankPart
from harness.analysis.summary import Problem, Summary, Window
from harness.common.errors import RequestError
from harness.measure.jobs import completed, contents_of, name_rank, withholding
from harness.measure.paths import measure_files
from harness.traces.progress import OnProgress, silent

AT_ONCE = 512  # traces whose parts are in memory before they are reduced
REPLAY = "replay"
NOT_REPLAYED = (
    f"of more than {MOST_DETAILED} traces the parts are merged as they come, without the events that it needs"
)

Origin = tuple[str, int]  # the run's directory and 0; outside of a run the folder of the trace and the world size


@dataclass(frozen=True)
class PartialMerge:
    """What was merged so far. jobs: the ranks by where they come from; loose: processes that may be no rank, or of any
    job."""

    jobs: dict[Origin, JobMerge] = field(default_factory=dict)
    loose: list[RankPart] = field(default_factory=list)
    broken: list[Problem] = field(default_factory=list)


def measure_merge(
    files: Sequence[Path], window: Window, workers: int | None = None, progress: OnProgress = silent
) -> PartialMerge:
    """A leaf: the traces measured, some at a time, and their parts reduced. `progress` gets the number of traces."""
    merges = []
    for at in range(0, len(files), AT_ONCE):
        some = files[at : at + AT_ONCE]
        read = measure_files(some, window, workers)
        merges.append(merge_of_parts(read.parts, read.broken))
        progress(at + len(some), len(files))
    return join_partial_merges(merges)


def merge_of_parts(parts: Sequence[RankPart], broken: Sequence[Problem] = ()) -> PartialMerge:
    """The parts of some traces, reduced."""
    ranks: dict[Origin, list[RankPart]] = {}
    loose: list[RankPart] = []
    for part in parts:
        origin = _origin(part)
        (loose if origin is None else ranks.setdefault(origin, [])).append(part)
    with _without_collector():
        return PartialMerge({origin: merge_parts(own) for origin, own in ranks.items()}, loose, list(broken))


def _origin(part: RankPart) -> Origin | None:
    """None: the part's job shows only beside those of all other files."""
    source = part.source
    if source.rank is None:
        return None
    if part.run is not None:
        return part.run, 0
    size = source.world_size or 1
    return (str(PurePath(source.path).parent), size) if size > 1 else None


def join_partial_merges(merges: Sequence[PartialMerge]) -> PartialMerge:
    """One of several that share no file. Associative."""
    several: dict[Origin, list[JobMerge]] = {}
    for origin, reduced in (item for merge in merges for item in merge.jobs.items()):
        several.setdefault(origin, []).append(reduced)
    with _without_collector():
        return PartialMerge(
            {origin: join_merges(own) if len(own) > 1 else own[0] for origin, own in several.items()},
            [part for merge in merges for part in merge.loose],
            [problem for merge in merges for problem in merge.broken],
        )


def summarise_partial_merge(
    merge: PartialMerge, broken: Sequence[Problem] = (), run_folders: Sequence[Path] = ()
) -> list[Summary]:
    """The root: as jobs.summarise of all parts, without a replay.

    Raises:
        RequestError: a folder holds a rank twice.
        WorkError: there is neither a part nor a run.
    """
    one_of_each = [*(reduced.ranks[0] for reduced in merge.jobs.values()), *merge.loose]
    beside = contents_of([*map(str, run_folders), *(p.run for p in one_of_each if p.run)])
    loose = [name_rank(part, beside[part.run].training) if part.run else part for part in merge.loose]
    with _without_collector():
        jobs: list[tuple[str | None, Summary]] = []
        for reduced in _jobs(merge, loose):
            run = reduced.ranks[0].run
            own = beside.get(run or "")
            world_size = own.world_size if own else None
            summary = summarise_merge(reduced, world_size, own.switches if own else None)
            jobs.append((run, withholding(summary, [REPLAY], NOT_REPLAYED)))
    return completed(jobs, beside, [*broken, *merge.broken])


def _jobs(merge: PartialMerge, loose: Sequence[RankPart]) -> Iterator[JobMerge]:
    """The ranks of each job: what `group` says of all of them."""
    origin_of = {part.key: origin for origin, own in merge.jobs.items() for part in own.ranks}
    for job in group([*(part for own in merge.jobs.values() for part in own.ranks), *loose]):
        origins = dict.fromkeys(origin_of.get(part.key) for part in job)
        whole = [merge.jobs[origin] for origin in origins if origin is not None]
        if None in origins:
            whole.append(merge_parts([part for part in job if part.key not in origin_of]))
        if sum(len(own.ranks) for own in whole) != len(job):
            folder = next(iter(merge.jobs))[0] if None in origins else next(o for o in origins if o)[0]
            raise RequestError(
                f"{folder}: its traces hold a rank twice, so it is not known which of them are one job: "
                "give the folder of each job separately"
            )
        joined = join_merges(whole) if len(whole) > 1 else whole[0]
        yield JobMerge(_with_problems(joined.ranks, job), joined.sums, joined.blocks)


def _with_problems(ranks: list[RankPart], rank_parts: Sequence[RankPart]) -> list[RankPart]:
    """The ranks with what grouping found about them."""
    problems = {part.key: part.problems for part in rank_parts if part.problems}
    return [
        part.model_copy(update={"problems": problems[part.key]}) if part.key in problems else part for part in ranks
    ]


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hundreds of thousands of objects without a circle: looking for circles takes most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
