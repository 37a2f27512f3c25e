"""At which lines of the user's code a loss is, by what each line has of it on the ranks that lose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.phases import Phase
from harness.analysis.summary import CodeLocation, LineShare
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.host_causes import counterfactual
from harness.replay.attribute.suspect import Cause, Suspect
from harness.replay.graph.graph import HOST_TIME, N_PHASES, SLOTS, WORK_TIME, ProcessGraph, TimeCategory, slots
from harness.replay.measure.context import NOT_THERE, Frame, ReplayContext, frames_of
from harness.traces.sampled_lines import CodeLine
from harness.traces.trace import F64

MOST_LINES = 3
LEAST = 0.05  # of the loss
_MOST = 0.5  # of the loss at one line, or of a line's time that is lost
_AT_ONE_LINE = 0.8  # of a loss at changing places, from which it is told that it is at one line
_MORE_THAN_ITS_TIME = 2.0  # the same, times the line's part of all the host's time
_MORE_THAN_USUAL = (
    TimeCategory.HOST_STALL,
    TimeCategory.HOST_HELD,
    TimeCategory.HOST_SENDING,
    TimeCategory.TRANSFER,
    TimeCategory.WAIT_TAIL,
)


def line_shares(context: ReplayContext, suspect: Suspect) -> list[LineShare]:
    """The lines with most of the loss, the largest share first; empty where none were sampled. Where it is spread over
    lines, or at a line where the rest of the program is too, the call is named that leads there and to little else."""
    processes, categories = context.job.processes, CAUSES[suspect.cause].categories
    if categories == () or not any(len(own.code_lines) for own in processes):
        return []
    table = _Table(context, suspect)
    lost = _parts(table.lost)
    if suspect.cause is Cause.INTERRUPTED:
        least = np.maximum(_AT_ONE_LINE, _MORE_THAN_ITS_TIME * _parts(table.host_time(suspect.processes)))
        lost = np.where(lost >= least, lost, 0)
    by_line = table.by_line(lost)
    calls = [] if suspect.cause is Cause.INTERRUPTED or categories else table.calls(lost)
    first = max(by_line, key=by_line.__getitem__, default=None)
    if first is None:
        return []
    if calls and (by_line[first] < _MOST or not table.is_specific(lost, first)):
        inside, first = first, calls[0]
        within = by_line[inside]
        by_line = table.by_line(np.where(table.within(first), 0, lost)) | {
            first: float(lost[table.within(first)].sum())
        }
        shares = _shown(table, by_line, first)
        detail = {"inside": _location(inside)} if within >= LEAST and inside != first else {}
    else:
        shares, detail = _shown(table, by_line, first), {}
    outer = [] if suspect.cause is Cause.TINY_KERNELS else reversed(calls)  # small operators may be all of a program
    outermost = next((_location(call) for call in outer if call != first), None)
    return [
        own.model_copy(update={**detail, "called_at": outermost}) if i == 0 else own for i, own in enumerate(shares)
    ]


def joined_stalls(context: ReplayContext, suspects: Sequence[Suspect]) -> list[Suspect]:
    """The suspects; stalls of the same processes in the same lines are one, in whatever phases these lines run."""
    found: list[Suspect] = []
    for own in suspects:
        at = next((at for at, one in enumerate(found) if _is_same_code(context, one, own)), None)
        if at is None:
            found.append(own)
            continue
        other = found[at]
        both = counterfactual(context, own.cause, None, own.processes, sorted({*other.slots, *own.slots}))
        found[at] = replace(both, what=other.what, where=other.where)
    return found


def _is_same_code(context: ReplayContext, a: Suspect, b: Suspect) -> bool:
    if {a.cause, b.cause} != {Cause.HOST_STALL} or a.processes != b.processes:
        return False
    if a.alone or b.alone or not (a.slots and b.slots):
        return False
    by_line = [line_shares(context, own) for own in (a, b)]
    shares = [{(x.where.file, x.where.line): x.share for x in lines} for lines in by_line]
    return sum(min(share, shares[1].get(where, 0.0)) for where, share in shares[0].items()) >= _MOST


def _shown(table: _Table, by_line: dict[Frame, float], first: Frame) -> list[LineShare]:
    """The lines with the largest shares; `first` is the first one."""
    others = sorted((frame for frame in by_line if frame != first), key=lambda frame: -by_line[frame])
    return [
        LineShare(where=_location(frame), share=min(by_line[frame], 1.0), **table.source(frame))
        for frame in [first, *others][:MOST_LINES]
        if by_line[frame] >= LEAST
    ]


def _location(frame: Frame) -> CodeLocation:
    file, line, function = frame
    return CodeLocation(file=file, line=line, function=function)


def _parts(ns: F64) -> F64:
    """Each one's part of the sum; 0 where there is none."""
    return ns / max(float(ns.sum()), 1.0)


class _Table:
    """The times of all processes by the same lines and those that called them: column 0 is no line of the user's code,
    column 1 + i is `stacks[i]`, a line and its callers."""

    def __init__(self, context: ReplayContext, suspect: Suspect) -> None:
        self._suspect, self._steps, self._processes = suspect, context.step_count, context.job.processes
        self._known: dict[tuple[str, int], CodeLine] = {}
        for line in (line for own in context.job.processes for line in own.code_lines):
            key = line.file, line.line
            # a lambda or a comprehension has a frame of its own in the line of a function
            if key not in self._known or self._known[key].function.startswith("<"):
                self._known[key] = line
        found = dict.fromkeys(self._stack(line) for own in context.job.processes for line in own.code_lines)
        self._number = {stack: 1 + i for i, stack in enumerate(found)}
        self.stacks = list(found)

    def _stack(self, line: CodeLine) -> tuple[Frame, ...]:
        """A line and its callers, the innermost first; a comprehension belongs to the function around it."""
        found: list[Frame] = []
        for file, at, recorded in reversed(frames_of(line)):
            known, name = self._known.get((file, at)), recorded
            if name.startswith("<") and found:
                around = found[-1]
                name = around[2] if around[0] == file else known.function if known else name
            if not found or found[-1] != (file, at, name):
                found.append((file, at, name))
        return tuple(reversed(found))

    def by_line(self, ns: F64) -> dict[Frame, float]:
        """Of each innermost line."""
        found: dict[Frame, float] = {}
        for stack, own in zip(self.stacks, ns[1:].tolist(), strict=True):
            if own > 0:
                found[stack[0]] = found.get(stack[0], 0.0) + own
        return found

    def within(self, frame: Frame) -> NDArray[np.bool_]:
        """The columns in which a line is, or calls what is."""
        return np.array([False, *(frame in stack for stack in self.stacks)])

    def calls(self, lost: F64) -> list[Frame]:
        """The lines that lead to most of the loss and to little else, the innermost first: of the line with most of it
        that has such callers."""
        for column in np.argsort(-lost[1:], kind="stable").tolist():
            frames = (frame for frame in self.stacks[column] if lost[self.within(frame)].sum() >= _MOST)
            if found := [frame for frame in frames if self.is_specific(lost, frame)]:
                return found
            if lost[1 + column] < LEAST:
                break
        return []

    def is_specific(self, lost: F64, frame: Frame) -> bool:
        """Whether most of the time in a line, on the ranks that lose it, is lost; of code that only they run, whether
        the others are not there."""
        mine, suspect, lost_ns = self.within(frame), self._suspect, self.lost.sum()
        whole = self._own[mine].sum()
        if suspect.alone and self._others is not None:
            return bool(self._others[mine].sum() <= NOT_THERE * whole)
        # between small operators is only a part of any line's time
        least = lost_ns / max(self._own.sum(), 1) if suspect.cause is Cause.TINY_KERNELS else _MOST
        return bool(lost[mine].sum() * lost_ns >= min(least, _MOST) * whole)

    @cached_property
    def _own(self) -> F64:
        """The host's time at each column, on the ranks that lose it."""
        return self._whole(self._suspect.processes)

    @cached_property
    def _others(self) -> F64 | None:
        """The same of the other ranks; None without any."""
        others = [p for p in range(len(self._processes)) if p not in self._suspect.processes]
        return self._whole(others) if others else None

    def source(self, frame: Frame) -> dict[str, Any]:
        """The fields of a line's source, where it is known."""
        line = self._known.get((frame[0], frame[1]))
        return {} if line is None else {"source": list(line.source), "first_line": line.first_line}

    @cached_property
    def lost(self) -> F64:
        """What each column has of the loss, in nanoseconds of one process and step. Small operators of a backward pass
        are counted where the forward pass has its own: one follows from the other."""
        chosen, is_more = _slots_of(self._suspect)
        if self._suspect.cause is not Cause.TINY_KERNELS:
            return self._lost(chosen, is_more)
        backward = chosen % N_PHASES == Phase.BACKWARD
        forward = self._lost(chosen[chosen % N_PHASES == Phase.FORWARD], is_more)
        rest = self._lost(chosen[~backward], is_more)
        found: F64 = rest + _parts(forward) * self._lost(chosen[backward], is_more).sum()
        return found

    def _whole(self, processes: Sequence[int]) -> F64:
        """What each column has of the host's time and work, in one step of one process: of the steps with the loss."""
        chosen, steps = np.array(slots((*HOST_TIME, *WORK_TIME))), self._suspect.steps
        times = np.stack([self._times(self._processes[p], chosen, ()) for p in processes])
        found: F64 = times[:, steps if steps.any() else ~steps].mean(axis=(0, 1))
        return found

    def _lost(self, chosen: NDArray[np.int64], is_more: bool) -> F64:
        suspect = self._suspect
        rows = [tuple(row for p, row in suspect.activities if p == each) for each in range(len(self._processes))]
        times = np.stack([self._times(own, chosen, of) for own, of in zip(self._processes, rows, strict=True)])
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

    def _times(self, process_graph: ProcessGraph, chosen: NDArray[np.int64], activities: tuple[int, ...]) -> F64:
        """Of one process by step and column, in some slots and activities."""
        steps, columns = self._steps, 1 + len(self.stacks)
        step, of, place, ns = process_graph.line_times
        doing = np.where(of >= SLOTS, (of - SLOTS) % max(len(process_graph.activities), 1), -1)
        kept = (np.isin(of, chosen) | np.isin(doing, np.array(activities, np.int64))) & (step < steps)
        number = np.array([*(self._number[self._stack(line)] for line in process_graph.code_lines), 0], np.int64)
        at = step[kept] * columns + number[place[kept]]
        found: F64 = np.bincount(at, ns[kept], steps * columns).astype(np.float64)
        return found.reshape(steps, columns)


def _slots_of(suspect: Suspect) -> tuple[NDArray[np.int64], bool]:
    """The slots in which the loss is, and whether these have nothing but what is more than usual."""
    if suspect.slots or suspect.activities:
        chosen = np.array(suspect.slots, np.int64)
        more = {int(category) for category in _MORE_THAN_USUAL}
        return chosen, set((chosen // N_PHASES).tolist()) <= more
    if categories := CAUSES[suspect.cause].categories:
        return np.array(slots(categories)), True
    return np.array(slots((*HOST_TIME, *WORK_TIME), suspect.phase)), False
