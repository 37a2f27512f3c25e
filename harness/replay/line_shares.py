"""Which lines of the user's code a suspected loss is at, and how much of it each one has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.analysis.summary import CodeLocation, LineShare
from harness.replay.context import HOST_TIME, WORK_TIME, ReplayContext, slots
from harness.replay.graph import N_PHASES, SLOTS, TimeCategory
from harness.replay.process import ProcessGraph
from harness.replay.suspect import Cause, Suspect
from harness.traces.sampled_lines import CodeLine
from harness.traces.trace import F64

MOST_LINES = 3
LEAST = 0.05  # of the loss
_AT_ONE_LINE = 0.8  # of a loss at changing places, from which it is told that it is at one line
_MORE_THAN_ITS_TIME = 2.0  # the same, times the line's part of all the host's time
_AT_NO_LINE = (
    Cause.PAUSE,
    Cause.NOISY_NEIGHBOUR,
    Cause.PINNED_TOGETHER,
    Cause.SLOW_DEVICE,
    Cause.UNEVEN_STAGES,
)
_MORE_THAN_USUAL = (
    TimeCategory.HOST_STALL,
    TimeCategory.HOST_HELD,
    TimeCategory.HOST_SENDING,
    TimeCategory.TRANSFER,
    TimeCategory.WAIT_TAIL,
)
_OF_CAUSE: dict[Cause, tuple[TimeCategory, ...]] = {
    Cause.COMMUNICATION: (TimeCategory.TRANSFER,),
    Cause.SMALL_BUCKETS: (TimeCategory.TRANSFER,),
    Cause.BUBBLE: (TimeCategory.TRANSFER,),
    Cause.COPIES: (TimeCategory.DEVICE_COPY,),
    Cause.PRECISION: (TimeCategory.DEVICE_FP32,),
    Cause.SYNCHRONISATION: (TimeCategory.WAIT_TAIL,),
}
_LineKey = tuple[str, int]


def line_shares(context: ReplayContext, suspect: Suspect) -> list[LineShare]:
    """The lines with most of the loss, the largest share first; empty where none were sampled."""
    processes = context.job.processes
    if suspect.cause in _AT_NO_LINE or not any(len(own.code_lines) for own in processes):
        return []
    table = _Table(context)
    lost = _parts(table.lost(suspect))
    order = np.argsort(-lost[1:], kind="stable")[:MOST_LINES]
    least = np.full(len(lost), LEAST)
    if suspect.cause is Cause.INTERRUPTED:
        least = np.maximum(_AT_ONE_LINE, _MORE_THAN_ITS_TIME * _parts(table.host_time(suspect.processes)))
    return [_share(table.lines[i], float(lost[1 + i])) for i in order.tolist() if lost[1 + i] >= least[1 + i]]


def _parts(ns: F64) -> F64:
    """Each one's part of the sum; 0 where there is none."""
    return ns / max(float(ns.sum()), 1.0)


def _share(line: CodeLine, share: float) -> LineShare:
    return LineShare(
        where=CodeLocation(file=line.file, line=line.line, function=line.function),
        share=share,
        source=list(line.source),
        first_line=line.first_line,
    )


class _Table:
    """The times of all processes by the same lines: column 0 is no line of the user's code, column 1 + i is line i."""

    def __init__(self, context: ReplayContext) -> None:
        self._context = context
        found: dict[_LineKey, CodeLine] = {}
        for own in context.job.processes:
            for line in own.code_lines:
                if _key(line) not in found or _is_unnamed(found[_key(line)]):
                    found[_key(line)] = line
        self.lines = list(found.values())
        self._number = {key: 1 + i for i, key in enumerate(found)}

    def lost(self, suspect: Suspect) -> F64:
        """What each column has of the loss, in nanoseconds of one process and step."""
        chosen, is_more = _slots_of(suspect)
        rows = [
            tuple(row for p, row in suspect.activities if p == each) for each in range(len(self._processes))
        ]
        times = np.stack(
            [self._times(own, chosen, of) for own, of in zip(self._processes, rows, strict=True)]
        )
        mine, hits = list(suspect.processes), suspect.steps
        lost: F64 = times[mine][:, hits].mean(axis=(0, 1)) if hits.any() else times[mine].mean(axis=(0, 1))
        if is_more:
            return lost
        others = [p for p in range(len(times)) if p not in mine]
        usual = np.zeros_like(lost)
        if others:
            usual = np.median(times[others][:, hits].mean(axis=1), axis=0)
        elif not hits.all():
            usual = np.median(times[mine].mean(axis=0)[~hits], axis=0)
        return np.maximum(lost - usual, 0)

    def host_time(self, processes: Sequence[int]) -> F64:
        """What each column has of the host's time of some processes, without its waits."""
        every = np.array(slots(HOST_TIME))
        found: F64 = sum(self._times(self._processes[p], every, ()).sum(axis=0) for p in processes)
        return found

    @property
    def _processes(self) -> Sequence[ProcessGraph]:
        return self._context.job.processes

    def _times(self, own: ProcessGraph, chosen: NDArray[np.int64], activities: tuple[int, ...]) -> F64:
        """Of one process by step and column, in some slots and activities."""
        steps, columns = self._context.step_count, 1 + len(self.lines)
        step, of, place, ns = own.line_times
        doing = np.where(of >= SLOTS, (of - SLOTS) % max(len(own.activities), 1), -1)
        kept = (np.isin(of, chosen) | np.isin(doing, np.array(activities, np.int64))) & (step < steps)
        number = np.array([*(self._number[_key(line)] for line in own.code_lines), 0], np.int64)
        at = step[kept] * columns + number[place[kept]]
        found: F64 = np.bincount(at, ns[kept], steps * columns).astype(np.float64)
        return found.reshape(steps, columns)


def _slots_of(suspect: Suspect) -> tuple[NDArray[np.int64], bool]:
    """The slots in which the loss is, and whether these have nothing but what is more than usual."""
    if suspect.slots or suspect.activities:
        chosen = np.array(suspect.slots, np.int64)
        more = {int(category) for category in _MORE_THAN_USUAL}
        return chosen, set((chosen // N_PHASES).tolist()) <= more
    if suspect.cause in _OF_CAUSE:
        return np.array(slots(_OF_CAUSE[suspect.cause])), True
    return np.array(slots((*HOST_TIME, *WORK_TIME), suspect.phase)), False


def _key(line: CodeLine) -> _LineKey:
    return line.file, line.line


def _is_unnamed(line: CodeLine) -> bool:
    """A lambda or a comprehension, which has a frame of its own, in the line of a function."""
    return line.function.startswith("<")
