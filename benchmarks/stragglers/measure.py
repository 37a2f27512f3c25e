"""Timelines to slowdowns: each file is one job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.traces.errors import TraceError
from harness.traces.trace import I64
from stragglers.events import read_operations
from stragglers.graph import Graphs, StepGraph, graphs_of
from stragglers.result import JobSlowdown, StageSlowdown, WorkerSlowdown
from stragglers.slowdown import (
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
from stragglers.timeline import Operations
from stragglers.vocabulary import Role


def measure(path: Path) -> JobSlowdown:
    """The slowdown of the job in one file.

    Raises:
        ColumnsError: it lacks a column.
        TraceError: it cannot be read, or no step is complete.
    """
    ops = read_operations(path)
    graphs = graphs_of(ops)
    if not graphs.graphs:
        why = next(iter(graphs.left_out.values()), "there is none")
        raise TraceError(ops.path, f"no step can be replayed: {why}")
    return _job_slowdown(ops, graphs, graphs.graphs)


Ranks = dict[tuple[int, int], int]  # of each data-parallel rank and stage the global rank


def _ranks(ops: Operations) -> Ranks:
    """The workers' ranks, as the file has them or else in Megatron's order."""
    dps, stages = np.unique(ops.dp).tolist(), np.unique(ops.stage).tolist()
    _, first = np.unique(np.stack([ops.dp, ops.stage]), axis=1, return_index=True)
    recorded = {(int(ops.dp[i]), int(ops.stage[i])): int(ops.rank[i]) for i in first}
    if min(recorded.values()) >= 0 and len(set(recorded.values())) == len(recorded):
        return recorded
    return {(dp, stage): stages.index(stage) * len(dps) + dps.index(dp) for dp, stage in recorded}


def _left_out(ops: Operations, graphs: Graphs) -> str | None:
    count = len(graphs.left_out) + ops.left_out
    if not count:
        return None
    step, why = next(iter(graphs.left_out.items()), (-1, "a time in it is no time"))
    of = f"step {ops.steps[step]}: {why}" if step >= 0 else why
    return f"{count} of {len(ops.steps) + ops.left_out} steps were left out ({of})"


def _job_slowdown(ops: Operations, graphs: Graphs, complete: Sequence[StepGraph]) -> JobSlowdown:
    replayed = np.isin(ops.step, [step for graph in complete for step in graph.steps])
    lengths = lengths_of(ops, complete)
    slowdown, work = slowdown_of(ops, complete, lengths), work_of(ops, lengths)
    workers = _workers(slowdown, work, _ranks(ops))
    cause = cause_of(slowdown.shares)
    by_place = {(worker.dp_rank, worker.stage): worker for worker in workers}
    slow = [by_place[work.dps[i], work.stages[j]] for i, j in slowest(work)] if cause.what == "workers" else []
    order = np.argsort(slowdown.steps)
    return JobSlowdown(
        slowdown=slowdown.slowdown,
        step_ns=round(float(slowdown.step_ns.mean())),
        ideal_step_ns=round(float(slowdown.ideal_ns.mean())),
        recorded_step_ns=_recorded_ns(ops, replayed),
        by_operation=by_size(slowdown.by_operation),
        by_stage=slowdown.by_stage,
        by_dp_rank=slowdown.by_dp,
        by_worker={worker.rank: worker.slowdown for worker in sorted(workers, key=lambda w: w.rank)},
        by_step={slowdown.steps[i]: float(slowdown.step_ns[i] / slowdown.ideal_ns[i]) for i in order},
        worst_stage=max(slowdown.by_stage, key=lambda stage: slowdown.by_stage[stage]),
        cause=cause.what,
        cause_share=cause.share,
        cause_operation=cause.operation,
        slow_workers=slow,
        shares=slowdown.shares,
        forward_backward_correlation=in_turn(ops, lengths),
        stages=_stages(slowdown, work),
        workers=workers,
        dp_size=len(work.dps),
        pp_size=len(work.stages),
        chunks=int(ops.chunk.max()) + 1,
        left_out=_left_out(ops, graphs),
        notes=ops.notes,
    )


def _recorded_ns(ops: Operations, replayed: Mask) -> int:
    last: I64 = np.zeros(len(ops.steps), np.int64)
    np.maximum.at(last, ops.step[replayed], ops.end_ns[replayed])
    return round(float(last[last > 0].mean())) if (last > 0).any() else 0


def _stages(slowdown: Slowdown, work: Work) -> list[StageSlowdown]:
    forward, backward = work.of_stage(Role.FORWARD), work.of_stage(Role.BACKWARD)
    beside = work.beside_stages()
    return [
        StageSlowdown(
            stage=stage,
            slowdown=slowdown.by_stage[stage],
            forward_ns=round(float(forward[i])),
            backward_ns=round(float(backward[i])),
            work=_known(beside[i]),
        )
        for i, stage in enumerate(work.stages)
    ]


def _workers(slowdown: Slowdown, work: Work, ranks: Ranks) -> list[WorkerSlowdown]:
    """The largest slowdown first; of equal ones the one that is slowest beside the others of its stage."""
    slower = work.beside_workers()
    workers = [
        WorkerSlowdown(
            rank=rank,
            dp_rank=dp,
            stage=stage,
            slowdown=min(slowdown.by_dp[dp], slowdown.by_stage[stage]),
            slower=_known(slower[work.dps.index(dp), work.stages.index(stage)]),
        )
        for (dp, stage), rank in ranks.items()
    ]
    return sorted(workers, key=lambda worker: (-worker.slowdown, -(worker.slower or 0.0), worker.rank))


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
