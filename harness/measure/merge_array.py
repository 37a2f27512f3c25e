"""Very many ranks by Slurm job arrays: the tasks of the first measure, and leave partial merges. Those of each further
one start when the earlier ones have ended, and join a few of them, until one process joins the last."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.summary import Problem, Window
from harness.common.errors import WorkError
from harness.measure import slurm_array
from harness.measure.array_plan import planned
from harness.measure.partial_merge import (
    PartialMerge,
    files_of,
    join_partial_merges,
    measure_merge,
    read_merge,
    write_merge,
)
from harness.measure.slurm_array import Array, ArrayJob, lost, submit, wait
from harness.traces.progress import OnProgress, silent

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
    return join_partial_merges(
        [read_merge(node.output) for node in levels[-1] if node.output.exists()]
    ), problems


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
