"""The graphs of a job's processes as one, joined where ranks wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.grouping import align_clocks
from harness.analysis.job.matching import match_collectives
from harness.analysis.process.part import RankPart
from harness.replay.graph.builder import column
from harness.replay.graph.collectives import EARLY, CollectiveNodes, CollectiveSync, join_messages
from harness.replay.graph.graph import JobGraph, ProcessGraph
from harness.replay.graph.host import least_stall
from harness.traces.trace import I64


def join_job(
    graphs: Sequence[ProcessGraph], parts: Sequence[RankPart], world_size: int | None, early: float = EARLY
) -> JobGraph | None:
    """One graph of a job's processes; None without a step. `parts`: of the same processes. early: by how much of its
    waiting a process may seem to go on before the last one arrived."""
    graphs = sorted(graphs, key=lambda g: (-1 if g.rank is None else g.rank, g.path, g.pid or -1))
    steps = min((len(g.step_begin) for g in graphs), default=0)
    if not steps:
        return None
    matched = match_collectives(parts, world_size).matched
    offsets = {c: clock.offset_ns for c, clock in align_clocks(parts, matched).items()}
    times = [g.time_ns + (g.epoch_ns or 0) - offsets.get(g.clock, 0) for g in graphs]
    origin = min(int(time[0]) for time in times)
    sync, nodes = CollectiveSync(early=early), []
    begin, end, last = [], [], []
    for place, (own, time) in enumerate(zip(graphs, times, strict=True)):
        node = sync.nodes
        nodes.append(CollectiveNodes((own.path, own.pid), _moved(own.arrive, node), _moved(own.done, node)))
        begin.append(own.step_begin[:steps] + node)
        end.append(own.step_end[:steps] + node)
        last.append(own.last[0] + node if len(own.last) else -1)
        sync.add_nodes(time - origin)
        _add_process(sync, place, own, node)
    step_begin, step_end, own_time = np.stack(begin), np.stack(end), sync.time
    join_messages(sync, nodes, matched, parts)
    sync.amounts.append(sync.held_up(least_stall(own_time[step_end] - own_time[step_begin])))
    process, columns = column(sync.process), sync.columns()
    return JobGraph(
        processes=graphs,
        process=process,
        last=np.array(last),
        step=_steps_of(columns["time_ns"][columns["target"]], process, own_time[step_end]),
        step_begin=step_begin,
        step_end=step_end,
        messages=sync.messages(),
        calls=sync.calls,
        alone=sync.alone_count,
        unknown=column(sync.unknown),
        **columns,
    )


def _add_process(sync: CollectiveSync, number: int, process_graph: ProcessGraph, node: int) -> None:
    """A process's own arcs, whose nodes are numbered from `node` on."""
    arc = sync.arcs
    sync.add(number, process_graph.source + node, process_graph.target + node)
    for columns, amounts in ((sync.amounts, process_graph.amounts), (sync.activities, process_graph.activity_amounts)):
        columns.append(amounts._replace(arc=amounts.arc + arc))
    for rows, mine in (
        (sync.repeated, process_graph.repeated),
        (sync.waits, process_graph.waits),
        (sync.syncs, process_graph.syncs),
    ):
        rows.append(mine + arc)


def _moved(rows: I64, by: int) -> I64:
    return np.where(rows >= 0, rows + by, -1)


def _steps_of(moment: I64, process: I64, step_end: NDArray[np.int64]) -> I64:
    """The step of each arc, by its process's ends of steps (processes, steps)."""
    step = np.empty(len(moment), np.int64)
    order = np.argsort(process, kind="stable")
    bounds = np.searchsorted(process[order], np.arange(len(step_end) + 1))
    for i, ends in enumerate(step_end):
        mine = order[bounds[i] : bounds[i + 1]]
        step[mine] = np.searchsorted(ends, moment[mine], side="left")
    step[step >= step_end.shape[1]] = -1
    return step
