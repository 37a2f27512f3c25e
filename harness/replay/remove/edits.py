"""Changes of a job's arcs: less time in some slots, messages that are faster or fewer, activities that are gone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.process.phases import Phase
from harness.replay.graph.graph import NEVER, JobGraph, TimeCategory, slots
from harness.traces.trace import F64, I64

TF32_CAREFUL = 1 / 1.5  # half of the bytes and twice the rate make 2; converting to 16 bits takes some of it
BUCKET = 25 * 2**20  # bytes, PyTorch's own
SMALL = 2**16  # bytes: a message of less takes about as long as an empty one
MANY = 8  # messages of a step
_REDUCES = ("all_reduce", "reduce_scatter")
_MOST = 0.5  # of the times that an activity came: from there on, nothing else is known of it
# Causes of idle time: the device, a batch.
_WAITING_FOR = (IdleTime.SYNCHRONISATION.label, IdleTime.ALLOCATION.label, IdleTime.DATA.label)


@dataclass(frozen=True)
class EditedLengths:
    """Every arc's length after the change. counted: the steps to look at, None: all that have settled. per: by how many
    of today's micro-batches the changed step is larger. extra_ns: what a step takes beyond the replayed arcs. best: the
    lengths at best, where `lengths` are careful; meaning: the change in words, where it depends on the job. work: by
    what each process's device work is multiplied, where the arcs do not say it; shape (processes,)."""

    lengths: I64
    counted: NDArray[np.bool_] | None = None
    per: int = 1
    extra_ns: float = 0.0
    best: I64 | None = None
    meaning: str | None = None
    work: F64 | None = None


def with_less(job_graph: JobGraph, process: int, chosen: list[int], less_ns: NDArray[np.float64]) -> I64:
    """Every arc's length where a process has so much less time in these slots, by step. It is taken from each step's
    longest arcs, since what is more than usual is at one place more often than everywhere."""
    amounts = job_graph.amounts
    lengths: I64 = job_graph.lengths.copy()
    mine = np.isin(amounts.slot, chosen) & (job_graph.process[amounts.arc] == process)
    arc, which = np.unique(amounts.arc[mine], return_inverse=True)
    ns = np.bincount(which, amounts.ns[mine], len(arc)).astype(np.int64)
    for step in np.flatnonzero(less_ns > 0).tolist():
        here = job_graph.step[arc] == step
        most = longest_of(ns[here], int(less_ns[step]))
        lengths[arc[here]] -= np.maximum(ns[here] - most, 0)
    return lengths


def longest_of(ns: I64, less: int) -> int:
    """The longest that any of these may be for all of them to be shorter by `less` together."""
    ordered = np.sort(ns)[::-1]
    ranks = np.arange(1, len(ordered) + 1)
    saved = np.cumsum(ordered) - ranks * np.append(ordered[1:], 0)  # when the first k are cut to the next one
    k = int(np.searchsorted(saved, less))
    if k >= len(ordered):
        return 0
    return int((ordered[: k + 1].sum() - less) // (k + 1))


def ideal(job_graph: JobGraph) -> I64:
    """Every arc's length where messages take no time: ranks still wait for each other."""
    factors = job_graph.unchanged()
    factors[:, slots((TimeCategory.TRANSFER, TimeCategory.TRANSFER_HELD))] = 0
    return job_graph.scaled(factors)


def small_buckets(job_graph: JobGraph) -> NDArray[np.bool_] | None:
    """Which messages are gradients in buckets so small that the latency counts; None: they are not."""
    messages = job_graph.messages
    phases = {call.phase for call in job_graph.calls}
    of_gradients = Phase.BACKWARD if phases & {Phase.FORWARD, Phase.BACKWARD} else Phase.OTHER  # no phase is known
    gradient = [call.kind in _REDUCES and call.phase == of_gradients for call in job_graph.calls]
    reduces = np.array([*gradient, False])[messages.call]
    each = np.count_nonzero(reduces) / job_graph.measured.size
    if each < MANY or (messages.bytes[reduces] < 0).any() or messages.bytes[reduces].mean() > SMALL:
        return None
    return reduces


def larger_buckets(job_graph: JobGraph) -> EditedLengths | None:
    """Gradients in as few messages as buckets of 25 MB need, each with the latency of one of today's."""
    reduces = small_buckets(job_graph)
    if reduces is None:
        return None
    messages = job_graph.messages
    now = np.count_nonzero(reduces) / job_graph.measured.size
    then = max(-(-int(messages.bytes[reduces].sum() / job_graph.measured.size) // BUCKET), 1)
    lengths: I64 = job_graph.lengths.copy()
    lengths[messages.arc] = np.rint(messages.ns * np.where(reduces, then / now, 1.0)).astype(np.int64)
    return EditedLengths(lengths)


def rows_of(job_graph: JobGraph, causes: tuple[str, ...], phases: tuple[Phase, ...]) -> list[tuple[int, int]]:
    """The process and row of the activities with one of these causes, in one of these phases."""
    names = [phase.label for phase in phases]
    return [
        (process, row)
        for process, own in enumerate(job_graph.processes)
        for row, activity in enumerate(own.activities)
        if activity.cause in causes and activity.phase in names
    ]


def without_activities(job_graph: JobGraph, windows: list[tuple[int, int]]) -> I64:
    """Every arc's length without the time of some activities of the host, and without the waits that they are. What
    follows a call until the device has work again takes as long without it, unless no such wait is known."""
    held, waits = job_graph.activity_amounts, np.zeros(job_graph.arcs, np.bool_)
    waits[job_graph.waits] = True
    lengths: I64 = job_graph.lengths.copy()
    for process, row in windows:
        own, mine = job_graph.processes[process], job_graph.process[held.arc] == process
        here, after = mine & (held.slot == row), mine & (held.slot == row + len(own.activities))
        if own.activities[row].cause in _WAITING_FOR:
            gone = np.unique(held.arc[here & waits[held.arc]])
            lengths[gone] = NEVER
            if len(gone) < _MOST * own.activities[row].count:
                here |= after
        here &= lengths[held.arc] > NEVER
        np.subtract.at(lengths, held.arc[here], held.ns[here])
    return lengths
