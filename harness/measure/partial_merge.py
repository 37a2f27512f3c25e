"""Very many ranks merged as a tree: what each reducer has so far, of all jobs among its files, and the Summaries at the
root. A partial merge is a file, so that reducers may run one after the other, here or as tasks of a job array.
"""

from __future__ import annotations

import gc
import json
import os
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from pydantic import TypeAdapter

from harness.analysis.job.grouping import group
from harness.analysis.job.partial_merge import (
    MOST_DETAILED,
    JobMerge,
    deserialize_merge,
    join_merges,
    merge_parts,
    serialize_merge,
)
from harness.analysis.job.summarise import summarise_merge
from harness.analysis.process.part import RankPart
from harness.analysis.summary import Problem, Summary, Window, Withheld
from harness.common.bounded_read import why_unread
from harness.common.errors import RequestError, WorkError
from harness.measure import slurm_array
from harness.measure.jobs import completed, contents_of, name_rank
from harness.measure.paths import measure_files
from harness.measure.run_contents import training_world_size
from harness.measure.slurm_array import Array, ArrayJob, lost, planned, submit, wait
from harness.traces.progress import OnProgress, silent

AT_ONCE = 512  # traces whose parts are in memory before they are reduced
REPLAY = "replay"
_PARTS = TypeAdapter(list[RankPart])
_PROBLEMS = TypeAdapter(list[Problem])

Origin = tuple[str, int]  # the run's directory and 0; outside of a run the folder of the trace and the world size


@dataclass(frozen=True)
class PartialMerge:
    """What was merged so far. jobs: the ranks by where they come from; loose: processes that may be no rank, or of any
    job; files: how many traces were measured or found broken."""

    jobs: dict[Origin, JobMerge] = field(default_factory=dict)
    loose: list[RankPart] = field(default_factory=list)
    broken: list[Problem] = field(default_factory=list)
    files: int = 0


def is_many(files: Sequence[Path]) -> bool:
    """Whether these are so many that their parts are merged as a tree, and not all at once."""
    return len(files) > MOST_DETAILED


def measure_merge(
    files: Sequence[Path], window: Window, workers: int | None = None, progress: OnProgress = silent
) -> PartialMerge:
    """A leaf: the traces measured, some at a time, and their parts reduced. `progress` gets the number of traces."""
    merges = []
    for at in range(0, len(files), AT_ONCE):
        some = files[at : at + AT_ONCE]
        read = measure_files(some, window, workers)
        merges.append(merge_of_parts(read.parts, read.broken, len(some)))
        progress(at + len(some), len(files))
    return join_partial_merges(merges)


def merge_of_parts(parts: Sequence[RankPart], broken: Sequence[Problem] = (), files: int = 0) -> PartialMerge:
    """The parts of some traces, reduced."""
    ranks: dict[Origin, list[RankPart]] = {}
    loose: list[RankPart] = []
    for part in parts:
        origin = _origin(part)
        (loose if origin is None else ranks.setdefault(origin, [])).append(part)
    with _without_collector():
        return PartialMerge({origin: merge_parts(own) for origin, own in ranks.items()}, loose, list(broken), files)


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
            sum(merge.files for merge in merges),
        )


def summarise_partial_merge(
    merge: PartialMerge, broken: Sequence[Problem] = (), runs: Sequence[Path] = ()
) -> list[Summary]:
    """The root: as jobs.summarise of all parts, without a replay.

    Raises:
        RequestError: a folder holds a rank twice.
        WorkError: there is neither a part nor a run.
    """
    beside = contents_of([*map(str, runs), *(p.run for p in _some(merge) if p.run)])
    worlds = {run: training_world_size(own.training) for run, own in beside.items()}
    loose = [name_rank(part, beside[part.run].training) if part.run else part for part in merge.loose]
    with _without_collector():
        jobs: list[tuple[str | None, Summary]] = []
        for reduced in _jobs(merge, loose):
            run = reduced.ranks[0].run
            switches = beside[run].switches if run else None
            jobs.append((run, _not_replayed(summarise_merge(reduced, worlds.get(run or ""), switches))))
    return completed(jobs, beside, [*broken, *merge.broken])


def _some(merge: PartialMerge) -> Iterator[RankPart]:
    """One part of each origin, and the loose."""
    yield from (reduced.ranks[0] for reduced in merge.jobs.values())
    yield from merge.loose


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


def _with_problems(ranks: list[RankPart], job: Sequence[RankPart]) -> list[RankPart]:
    """The ranks with what grouping found about them."""
    problems = {part.key: part.problems for part in job if part.problems}
    return [
        part.model_copy(update={"problems": problems[part.key]}) if part.key in problems else part for part in ranks
    ]


def _not_replayed(summary: Summary) -> Summary:
    reason = f"of more than {MOST_DETAILED} traces the parts are merged as they come, without the events that it needs"
    quality = summary.quality
    withheld = [*quality.withheld, Withheld(field=REPLAY, reason=reason)]
    return summary.model_copy(update={"quality": quality.model_copy(update={"withheld": withheld})})


def write_merge(path: Path, merge: PartialMerge) -> None:
    """Under a temporary name, then renamed. Raises WorkError: the disk is full or not writable."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w") as file:
            head = {
                "files": merge.files,
                "jobs": list(merge.jobs),
                "broken": _PROBLEMS.dump_python(merge.broken, mode="json"),
                "loose": _PARTS.dump_python(merge.loose, mode="json"),
            }
            file.writestr("head.json", json.dumps(head))
            for i, reduced in enumerate(merge.jobs.values()):
                file.writestr(f"{i}.npz", serialize_merge(reduced))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise WorkError(f"{path}: cannot be written ({why_unread(error)})") from None


def read_merge(path: Path) -> PartialMerge:
    """Raises WorkError: the file is missing or damaged."""
    try:
        with zipfile.ZipFile(path) as file, _without_collector():
            head = json.loads(file.read("head.json"))
            jobs = {
                (str(folder), int(size)): deserialize_merge(file.read(f"{i}.npz"))
                for i, (folder, size) in enumerate(head["jobs"])
            }
            loose, broken = _PARTS.validate_python(head["loose"]), _PROBLEMS.validate_python(head["broken"])
            return PartialMerge(jobs, loose, broken, int(head["files"]))
    except OSError as error:
        why = why_unread(error)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError):
        why = "it is damaged"
    raise WorkError(f"{path}: is not a partial result of a report ({why})")


def files_of(path: Path) -> int:
    """How many traces a partial merge is of, after a look at every byte of it. Raises WorkError: as read_merge."""
    try:
        with zipfile.ZipFile(path) as file:
            if file.testzip() is None:
                return int(json.loads(file.read("head.json"))["files"])
        why = "it is damaged"
    except OSError as error:
        why = why_unread(error)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError):
        why = "it is damaged"
    raise WorkError(f"{path}: is not a partial result of a report ({why})")


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


FAN_IN = 8  # partial merges that one task joins


@dataclass(frozen=True)
class _Node:
    """One task: what it leaves, of how many traces, and the partial merges that it joins; none: it measures."""

    output: Path
    files: int
    inputs: tuple[Path, ...] = ()


def merge_distributed(
    files: Sequence[Path], window: Window, array: Array, progress: OnProgress = silent
) -> tuple[PartialMerge, list[Problem]]:
    """As partial_merge.measure_merge, by the tasks of job arrays; and a problem for each file of a task that failed.

    A folder that has a plan already goes on with it: what a task left whole is not done again, but a join that lacked
    a partial merge is. If a joining task fails, its inputs are joined here.

    Raises:
        RequestError: the folder's plan is of other files or another window, or they have changed since.
        WorkError: nothing was submitted, or the folder cannot be written.
    """
    array.folder.mkdir(parents=True, exist_ok=True)
    chunks = planned(array.folder, [file.absolute() for file in files], window, array.tasks).chunks
    levels = _levels(array.folder.absolute(), [len(chunk) for chunk in chunks], joins=array.after is not None)
    missing = [[node for node in level if not _is_whole(node)] for level in levels]
    leaves = dict(zip((node.output for node in levels[0]), chunks, strict=True))
    tasks = [(leaves[node.output], window.value, node.output) for node in missing[0]]
    jobs = [submit(array.executor, measure_leaf, tasks)]
    for level in missing[1:]:
        executor = array.after(jobs[-1]) if array.after and jobs[-1] else array.executor
        jobs.append(submit(executor, join_files, [(node.inputs, node.output) for node in level]))
    problems = _awaited(array, [*zip(missing, jobs, strict=True)], leaves, progress)
    return join_partial_merges([read_merge(node.output) for node in levels[-1] if node.output.exists()]), problems


def _levels(folder: Path, leaves: Sequence[int], joins: bool) -> list[list[_Node]]:
    """The tree, the leaves first. leaves: how many traces each measures."""
    levels = [[_Node(folder / f"merge-0-{i}.zip", count) for i, count in enumerate(leaves)]]
    while joins and len(levels[-1]) > FAN_IN:
        below = levels[-1]
        groups = [below[at : at + FAN_IN] for at in range(0, len(below), FAN_IN)]
        levels.append(
            [
                _Node(
                    folder / f"merge-{len(levels)}-{i}.zip",
                    sum(node.files for node in each),
                    tuple(node.output for node in each),
                )
                for i, each in enumerate(groups)
            ]
        )
    return levels


def _is_whole(node: _Node) -> bool:
    """Whether its partial merge is there, of all its traces. One that is not is made again."""
    try:
        if files_of(node.output) == node.files:
            return True
    except WorkError:
        pass
    node.output.unlink(missing_ok=True)
    return False


def _awaited(
    array: Array,
    levels: Sequence[tuple[Sequence[_Node], Sequence[ArrayJob]]],
    leaves: dict[Path, list[Path]],
    progress: OnProgress,
) -> list[Problem]:
    """Wait for every task. A finding for each file that was not measured."""
    outputs = [node.output for nodes, _ in levels for node in nodes]
    problems: list[Problem] = []

    def show_progress() -> None:
        progress(sum(output.exists() for output in outputs), len(outputs))

    for nodes, jobs in levels:
        for node, job in zip(nodes, jobs, strict=True):
            failure = wait(job, node.output, array.in_queue, show_progress)
            if failure and node.inputs:
                join_files(node.inputs, node.output)
            elif failure:
                problems += lost(leaves[node.output], failure)
    return problems


def measure_leaf(files: Sequence[Path], window: str, output: Path) -> str:
    """The work of a task of the first array: measure its files, leave a partial merge. Returns its path."""
    write_merge(output, measure_merge(list(files), Window(window)))
    return str(output)


def join_files(inputs: Sequence[Path], output: Path) -> str:
    """The work of a task of a further array: join the partial merges that exist. Returns the path of the result."""
    until = time.monotonic() + slurm_array.GRACE_S
    while not all(path.exists() for path in inputs) and time.monotonic() < until:
        time.sleep(slurm_array.POLL_S)
    write_merge(output, join_partial_merges([read_merge(path) for path in inputs if path.exists()]))
    return str(output)
