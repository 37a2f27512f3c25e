"""Timelines of operations to Summaries: each file is one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.analysis.job.summarise import spread
from harness.analysis.summary import (
    Problem,
    Quality,
    RankSteps,
    RecordingVerdict,
    Steps,
    Stragglers,
    StragglerStage,
    StragglerWorker,
    Summary,
    TraceSource,
    problem_texts,
)
from harness.replay.stragglers.graph import Graphs, StepGraph, graphs_of
from harness.replay.stragglers.slowdown import (
    Mask,
    Slowdown,
    Work,
    by_size,
    cause_of,
    in_turn,
    lengths_of,
    slowdown_of,
    slowest,
    work_of,
)
from harness.traces.errors import TraceError
from harness.traces.operations.read import is_meant_as_timeline, read_operations
from harness.traces.operations.timeline import Operations
from harness.traces.operations.vocabulary import Role
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import I64

_TOOL = "operations"


def split_timelines(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The timelines of operations among some files, and the others, which are traces of processes."""
    timelines = [file for file in files if is_meant_as_timeline(file)]
    there = set(timelines)
    return timelines, [file for file in files if file not in there]


def measure_timelines(files: Sequence[Path], progress: OnProgress = silent) -> tuple[list[Summary], list[Problem]]:
    """A summary of each timeline, and a problem of each file that cannot be read. Of files in one folder with the same
    operations, such as a table and its Chrome events, the first one counts, a table before events.

    Raises:
        ColumnsError: a table lacks a column.
        TablesNeeded: one is Parquet, and pyarrow is not installed.
    """
    summaries: list[Summary] = []
    broken: list[Problem] = []
    read: list[tuple[Path, Operations]] = []
    for file in sorted(files, key=lambda file: (file.parent, ".json" in file.suffixes, file.name)):
        try:
            ops = read_operations(file, progress)
            if any(before.parent == file.parent and _is_same(ops, other) for before, other in read):
                continue
            summaries.append(summary_of(ops))
            read.append((file, ops))
        except TraceError as error:
            what = problem_texts.UNREADABLE
            broken.append(Problem(severity=RecordingVerdict.UNUSABLE, what=what, evidence=str(error)))
    return summaries, broken


def _is_same(a: Operations, b: Operations) -> bool:
    """Whether two timelines have the same operations of the same workers in the same steps."""
    if len(a) != len(b) or a.names != b.names or a.steps != b.steps:
        return False
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("kind", "dp", "stage", "step", "chunk"))


def summary_of(ops: Operations) -> Summary:
    """The summary of one timeline. Raises TraceError: no step is complete."""
    graphs = graphs_of(ops)
    if not graphs.graphs:
        why = next(iter(graphs.left_out.values()), "there is none")
        raise TraceError(ops.path, f"no step can be replayed: {why}")
    ranks = _ranks(ops)
    replayed = np.isin(ops.step, [step for graph in graphs.graphs for step in graph.steps])
    return Summary(
        quality=_quality(ops, graphs),
        sources=[TraceSource(path=ops.path, tool=_TOOL, notes=ops.notes)],
        world_size=len(ranks) if ops.rank.max() < len(ranks) else int(ops.rank.max()) + 1,
        ranks=sorted(ranks.values()),
        steps=_steps(ops, replayed, ranks),
        stragglers=_stragglers(ops, graphs.graphs, ranks, replayed),
    )


Ranks = dict[tuple[int, int], int]  # of each data-parallel rank and stage the global rank


def _ranks(ops: Operations) -> Ranks:
    """The workers' ranks, as the file has them or else in Megatron's order."""
    dps, stages = np.unique(ops.dp).tolist(), np.unique(ops.stage).tolist()
    _, first = np.unique(np.stack([ops.dp, ops.stage]), axis=1, return_index=True)
    found = {(int(ops.dp[i]), int(ops.stage[i])): int(ops.rank[i]) for i in first}
    if min(found.values()) >= 0 and len(set(found.values())) == len(found):
        return found
    return {(dp, stage): stages.index(stage) * len(dps) + dps.index(dp) for dp, stage in found}


def _steps(ops: Operations, replayed: Mask, ranks: Ranks) -> Steps:
    """From a step's first operation to the last one of each worker."""
    rows = np.flatnonzero(replayed)
    key, inverse = np.unique(np.stack([ops.dp[rows], ops.stage[rows], ops.step[rows]]), axis=1, return_inverse=True)
    ends = np.zeros(key.shape[1], np.int64)
    np.maximum.at(ends, inverse.ravel(), ops.end_ns[rows])
    per_worker: dict[int, list[int]] = {}
    for dp, stage, end in zip(key[0].tolist(), key[1].tolist(), ends.tolist(), strict=True):
        per_worker.setdefault(ranks[dp, stage], []).append(end)
    return Steps(
        source="the timeline's steps",
        found=len(ops.steps) * len(per_worker),
        counted=len(ends),
        duration=spread(ends),
        mean_ns=round(float(ends.mean())),
        between_ns=0,
        per_rank=[
            RankSteps(rank=rank, durations_ns=each, median_ns=round(float(np.median(each))))
            for rank, each in sorted(per_worker.items())
        ],
    )


def _quality(ops: Operations, graphs: Graphs) -> Quality:
    problems = [Problem.remark(problem_texts.TIMELINE_READ, note) for note in ops.notes]
    left_out = len(graphs.left_out) + ops.left_out
    if left_out:
        step, why = next(iter(graphs.left_out.items()), (-1, "a time in it is no time"))
        of = f"step {ops.steps[step]}: {why}" if step >= 0 else why
        evidence = f"{left_out} of {len(ops.steps) + ops.left_out} steps were left out ({of})"
        problems.insert(0, Problem.doubt(problem_texts.STEPS_INCOMPLETE, evidence))
    verdict = RecordingVerdict.DOUBTFUL if left_out else RecordingVerdict.GOOD
    return Quality(verdict=verdict, problems=problems)


def _stragglers(ops: Operations, graphs: Sequence[StepGraph], ranks: Ranks, replayed: Mask) -> Stragglers:
    lengths = lengths_of(ops, graphs)
    found, work = slowdown_of(ops, graphs, lengths), work_of(ops, lengths)
    workers = _workers(found, work, ranks)
    cause = cause_of(found.shares)
    by_place = {(worker.dp_rank, worker.stage): worker for worker in workers}
    slow = [by_place[work.dps[i], work.stages[j]] for i, j in slowest(work)] if cause.what == "workers" else []
    order = np.argsort(found.steps)
    return Stragglers(
        slowdown=found.slowdown,
        step_ns=round(float(found.step_ns.mean())),
        ideal_step_ns=round(float(found.ideal_ns.mean())),
        by_operation=by_size(found.by_operation),
        by_stage=found.by_stage,
        by_dp_rank=found.by_dp,
        by_worker={worker.rank: worker.slowdown for worker in sorted(workers, key=lambda w: w.rank)},
        by_step={found.steps[i]: float(found.step_ns[i] / found.ideal_ns[i]) for i in order},
        worst_operation=max(found.by_operation, key=lambda name: found.by_operation[name]),
        worst_stage=max(found.by_stage, key=lambda stage: found.by_stage[stage]),
        worst_worker=workers[0],
        cause=cause.what,
        cause_share=cause.share,
        cause_operation=cause.operation,
        slow_workers=slow,
        shares=found.shares,
        stages=_stages(found, work),
        workers=workers,
        dp_size=len(work.dps),
        pp_size=len(work.stages),
        recorded_step_ns=_recorded_ns(ops, replayed),
        chunks=int(ops.chunk.max()) + 1,
        forward_backward_correlation=in_turn(ops, lengths),
    )


def _recorded_ns(ops: Operations, replayed: Mask) -> int:
    last: I64 = np.zeros(len(ops.steps), np.int64)
    np.maximum.at(last, ops.step[replayed], ops.end_ns[replayed])
    return round(float(last[last > 0].mean())) if (last > 0).any() else 0


def _stages(found: Slowdown, work: Work) -> list[StragglerStage]:
    forward, backward = work.of_stage(Role.FORWARD), work.of_stage(Role.BACKWARD)
    beside = work.beside_stages()
    return [
        StragglerStage(
            stage=stage,
            slowdown=found.by_stage[stage],
            forward_ns=round(float(forward[i])),
            backward_ns=round(float(backward[i])),
            work=_known(beside[i]),
        )
        for i, stage in enumerate(work.stages)
    ]


def _workers(found: Slowdown, work: Work, ranks: Ranks) -> list[StragglerWorker]:
    """The largest slowdown first; of equal ones the one that is slowest beside the others of its stage."""
    slower = work.beside_workers()
    workers = [
        StragglerWorker(
            rank=rank,
            dp_rank=dp,
            stage=stage,
            slowdown=min(found.by_dp[dp], found.by_stage[stage]),
            slower=_known(slower[work.dps.index(dp), work.stages.index(stage)]),
        )
        for (dp, stage), rank in ranks.items()
    ]
    return sorted(workers, key=lambda worker: (-worker.slowdown, -(worker.slower or 0.0), worker.rank))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
