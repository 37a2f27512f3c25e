"""A job replayed: how well, what its causes cost and at which lines, what changes would bring. The one way in for other
rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.part import RankPart
from harness.analysis.process.phases import PHASES
from harness.analysis.summary import CodeLocation, LineShare, RankTraining, Replay, Summary, TimeLost, WhatIf
from harness.replay import counterfactuals
from harness.replay.causes import CAUSES, limit_ns, suspects
from harness.replay.collectives import EARLY, WAITED_NS
from harness.replay.counterfactuals import Edited, gains
from harness.replay.graph import BACKWARD, DEVICE_PRODUCTS, FORWARD, N_PHASES, SLOTS, TimeCategory
from harness.replay.job import JobGraph, NoOrderError, join_job
from harness.replay.lines import NOT_THERE, Frame, frames_of
from harness.replay.process import ProcessGraph, unpack_graph
from harness.replay.suspect import HOST_TIME, NORMAL, WORK_TIME, Cause, Gain, ReplayContext, Suspect, slots
from harness.replay.what_ifs import WHAT_IFS, WhatIfKind
from harness.traces.python_functions import Owner, owner_of
from harness.traces.sampled_lines import CodeLine
from harness.traces.trace import F64

MOST_LINES = 3
LEAST = 0.05  # of the loss
_MOST = 0.5  # of the loss at one line, or of a line's time that is lost
_AT_ONE_LINE = 0.8  # of a loss at changing places, from which it is told that it is at one line
_MORE_THAN_ITS_TIME = 2.0  # the same, times the line's part of all the host's time
_AT_NO_LINE = (Cause.PAUSE, Cause.NOISY_NEIGHBOUR, Cause.PINNED_TOGETHER, Cause.SLOW_DEVICE)
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


def line_shares(context: ReplayContext, suspect: Suspect) -> list[LineShare]:
    """The lines with most of the loss, the largest share first; empty where none were sampled. Where it is spread over
    lines, or at a line where the rest of the program is too, the call is named that leads there and to little else."""
    processes = context.job.processes
    if suspect.cause in _AT_NO_LINE or not any(len(own.code_lines) for own in processes):
        return []
    table = _Table(context)
    lost = _parts(table.lost(suspect))
    if suspect.cause is Cause.INTERRUPTED:
        least = np.maximum(_AT_ONE_LINE, _MORE_THAN_ITS_TIME * _parts(table.host_time(suspect.processes)))
        lost = np.where(lost >= least, lost, 0)
    by_line = table.by_line(lost)
    calls = [] if suspect.cause in (Cause.INTERRUPTED, *_OF_CAUSE) else table.calls(suspect, lost)
    first = max(by_line, key=by_line.__getitem__, default=None)
    if first is None:
        return []
    if calls and (by_line[first] < _MOST or not table.is_specific(suspect, lost, first)):
        inside, first = first, calls[0]
        within = by_line[inside]
        by_line = table.by_line(np.where(table.within(first), 0, lost)) | {
            first: float(lost[table.within(first)].sum())
        }
        shares = _shown(table, by_line, first)
        detail = {"inside": _location(inside)} if within >= LEAST and inside != first else {}
    else:
        shares, detail = _shown(table, by_line, first), {}
    outermost = next((_location(call) for call in reversed(calls) if call != first), None)
    return [
        own.model_copy(update={**detail, "called_at": outermost}) if i == 0 else own for i, own in enumerate(shares)
    ]


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

    def __init__(self, context: ReplayContext) -> None:
        self._steps, self._processes = context.step_count, context.job.processes
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

    def calls(self, suspect: Suspect, lost: F64) -> list[Frame]:
        """The lines that lead to most of the loss and to little else, the innermost first."""
        column = max(range(len(self.stacks)), key=lambda i: lost[1 + i], default=None)
        frames = () if column is None else self.stacks[column]
        return [
            frame
            for frame in frames
            if lost[self.within(frame)].sum() >= _MOST and self.is_specific(suspect, lost, frame)
        ]

    def is_specific(self, suspect: Suspect, lost: F64, frame: Frame) -> bool:
        """Whether most of the time in a line, on the ranks that lose it, is lost; of code that only they run, whether
        the others are not there."""
        mine, chosen = self.within(frame), np.array(slots((*HOST_TIME, *WORK_TIME)))
        whole = self._whole(suspect.processes, suspect.steps, chosen)[mine].sum()
        others = [p for p in range(len(self._processes)) if p not in suspect.processes]
        if suspect.alone and others:
            return bool(self._whole(others, suspect.steps, chosen)[mine].sum() <= NOT_THERE * whole)
        return bool(lost[mine].sum() * self.lost(suspect).sum() >= _MOST * whole)

    def source(self, frame: Frame) -> dict[str, Any]:
        """The fields of a line's source, where it is known."""
        line = self._known.get((frame[0], frame[1]))
        return {} if line is None else {"source": list(line.source), "first_line": line.first_line}

    def lost(self, suspect: Suspect) -> F64:
        """What each column has of the loss, in nanoseconds of one process and step. Small operators of a backward pass
        are counted where the forward pass has its own: one follows from the other."""
        chosen, is_more = _slots_of(suspect)
        if suspect.cause is not Cause.TINY_KERNELS:
            return self._lost(suspect, chosen, is_more)
        backward = chosen % N_PHASES == BACKWARD
        forward = self._lost(suspect, chosen[chosen % N_PHASES == FORWARD], is_more)
        rest = self._lost(suspect, chosen[~backward], is_more)
        found: F64 = rest + _parts(forward) * self._lost(suspect, chosen[backward], is_more).sum()
        return found

    def _whole(self, processes: Sequence[int], steps: NDArray[np.bool_], chosen: NDArray[np.int64]) -> F64:
        """What each column has of some slots, in one step of one process."""
        times = np.stack([self._times(self._processes[p], chosen, ()) for p in processes])
        found: F64 = times[:, steps if steps.any() else ~steps].mean(axis=(0, 1))
        return found

    def _lost(self, suspect: Suspect, chosen: NDArray[np.int64], is_more: bool) -> F64:
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

    def _times(self, own: ProcessGraph, chosen: NDArray[np.int64], activities: tuple[int, ...]) -> F64:
        """Of one process by step and column, in some slots and activities."""
        steps, columns = self._steps, 1 + len(self.stacks)
        step, of, place, ns = own.line_times
        doing = np.where(of >= SLOTS, (of - SLOTS) % max(len(own.activities), 1), -1)
        kept = (np.isin(of, chosen) | np.isin(doing, np.array(activities, np.int64))) & (step < steps)
        number = np.array([*(self._number[self._stack(line)] for line in own.code_lines), 0], np.int64)
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


MOST_ERROR = 0.02  # of the step, above which nothing is answered
NOTICEABLE = 0.03  # of the step; a smaller loss is not told
IRREGULAR = 0.08  # of the step, for a loss that comes in few steps and at no regular distance
BETWEEN_RUNS = 0.05  # of the step: by how much two runs differ on CPUs beyond their steps' noise (docs/diagnosis.md)
GENERAL: dict[Cause, tuple[Cause, ...]] = {  # with the causes that are a part of each; none: every departure
    Cause.INTERRUPTED: (),
    Cause.COMMUNICATION: (Cause.SMALL_BUCKETS, Cause.SLOW_LINK),
}
WORTH = 0.005  # of the step; a smaller change is not listed


def diagnose(
    summary: Summary, parts: Sequence[RankPart], training: Sequence[RankTraining] = ()
) -> tuple[Replay | None, list[TimeLost]]:
    """The replay of one job and its findings, the largest loss first. Without a replay (the parts have no graphs, or it
    differs from the job) findings are shares of the devices' time. summary: the job's numbers."""
    graphs = [graph for part in parts if (graph := unpack_graph(part.graph)) is not None]
    for early in (EARLY, 0.0):  # where waiting goes round in a circle, fewer records are believed
        job = join_job(graphs, parts, summary.world_size, early)
        if job is None:
            break
        try:
            return _answer(ReplayContext(job, summary, {own.rank: own for own in training}, parts))
        except NoOrderError:
            continue
    return None, by_share(summary)


def by_share(s: Summary) -> list[TimeLost]:
    """Findings as shares of the devices' time, the largest first."""
    step = s.steps.duration
    window = sum(d.window_ns for d in s.devices) / max(len(s.devices), 1)
    whole = step.median_ns if step else window
    shares = {name: entry.share(s) or 0.0 for name, entry in CAUSES.items() if entry.share}
    found = [(name, share) for name, share in shares.items() if share >= NOTICEABLE]
    return [
        TimeLost(
            cause=name,
            ranks=list(s.ranks),
            lost_ns=round(share * whole),
            share=share,
            standing=True,
            basis="share",
            evidence=f"{share:.1%} of the devices' time",
        )
        for name, share in sorted(found, key=lambda pair: -pair[1])
    ]


def _answer(context: ReplayContext) -> tuple[Replay, list[TimeLost]]:
    job = context.job
    again = float(job.replay(job.lengths[None, :]).mean())
    error = abs(again - context.step_ns) / context.step_ns
    replayed = Replay(
        steps=job.step_begin.shape[1],
        processes=context.processes,
        step_ns=round(context.step_ns),
        replayed_ns=round(again),
        error=error,
        model_work_ns=_model_work(context),
        alone=job.alone,
        unknown_ns=_unknown_ns(job),
    )
    suspected = suspects(context)
    if error > MOST_ERROR:
        return replayed, _at_lines(context, suspected, by_share(context.summary))
    kinds = [(kind, edited) for kind in WHAT_IFS if (edited := kind.edit(context)) is not None]
    edits = [
        Edited(counterfactuals.ideal(context)),
        *(Edited(job.lengths if s.lengths is None else s.lengths) for s in suspected),
        *(edited for _, edited in kinds),
    ]
    ideal, *rest = gains(context, edits)
    found = list(zip(suspected, map(partial(_limited, context), suspected, rest), strict=False))
    noticed = [s for s, g in found if _stands_out(context, s, g)]
    beyond = [(s, _gain_beyond(context, s, noticed) or g) for s, g in found]
    told = [(s, g) for s, g in beyond if _stands_out(context, s, g)]
    lost = [_told(context, s, g) for s, g in told]
    what_ifs = [
        _what_if(context, kind, edited, gain)
        for (kind, edited), gain in zip(kinds, rest[len(suspected) :], strict=True)
        if gain.mean_ns > WORTH * context.step_ns
    ]
    found_too = {
        "ideal_network_ns": round(context.step_ns - ideal.mean_ns),
        "unexplained_ns": round(context.step_ns - _together(context, told)),
        "what_ifs": sorted(what_ifs, key=lambda w: w.step_ns),
    }
    return replayed.model_copy(update=found_too), sorted(lost, key=lambda found: -found.lost_ns)


def _limited(context: ReplayContext, suspect: Suspect, gain: Gain) -> Gain:
    """The gain, at most what the devices' time allows; what no change of arcs shows is given as it is."""
    if suspect.lengths is None and suspect.saved_ns is not None:
        saved = suspect.saved_ns[-len(gain.before) :]
        gain = Gain(gain.before, np.maximum(gain.before - saved, 0))
    return gain.at_most(limit_ns(context, suspect))


def _gain_beyond(context: ReplayContext, suspect: Suspect, noticed: list[Suspect]) -> Gain | None:
    """What a general cause costs beyond the specific ones that are a part of it: more work of a rank also holds its
    operators up, and small buckets are exposed communication. None where it is no general cause, or none of its
    specific ones was noticed."""
    if suspect.cause not in GENERAL or suspect.lengths is None:
        return None
    of_it = GENERAL[suspect.cause]
    parts = [o for o in noticed if (o.cause in of_it if of_it else not o.standing and o.cause not in GENERAL)]
    specific = [other.lengths for other in parts if other.lengths is not None]
    if not specific:
        return None
    least, with_it = context.job.least(specific), context.job.least([*specific, suspect.lengths])
    without, both = gains(context, [Edited(least), Edited(with_it)])
    return _limited(context, suspect, Gain(without.after, both.after))


def _together(context: ReplayContext, told: list[tuple[Suspect, Gain]]) -> float:
    """What a step gains without all of these, in nanoseconds: at most what it gains without each."""
    edited = [suspect.lengths for suspect, _ in told if suspect.lengths is not None]
    others = sum(gain.mean_ns for suspect, gain in told if suspect.lengths is None)
    gain = gains(context, [Edited(context.job.least(edited))])[0].mean_ns if edited else 0.0
    return min(gain + others, sum(gain.mean_ns for _, gain in told))


def _model_work(context: ReplayContext) -> int | None:
    """Median over steps, mean over ranks; None without such work."""
    work = context.of((TimeCategory.DEVICE_WORK, *DEVICE_PRODUCTS))
    if not work.any():
        operators = (TimeCategory.HOST_WORK, TimeCategory.HOST_PRODUCT)
        work = context.of(operators, FORWARD) + context.of(operators, BACKWARD)
    return round(float(np.median(work.mean(axis=0)))) or None


def _unknown_ns(job: JobGraph) -> int:
    """Collectives with ranks that are not known, where they are long enough to be waited in: per step, of the rank with
    the most."""
    inside = job.unknown[job.step[job.unknown] >= 0]
    ns = job.lengths[inside]
    by_process = np.bincount(job.process[inside], np.where(ns >= WAITED_NS, ns, 0), len(job.processes))
    return int(by_process.max() / job.step_begin.shape[1])


def _apart(suspect: Suspect) -> NDArray[np.bool_] | None:
    return suspect.steps if suspect.every is not None or suspect.counted else None


def _stands_out(context: ReplayContext, suspect: Suspect, gain: Gain) -> bool:
    """Whether a loss is more than chance: its interval is above 0, and what hits few steps, at no regular distance, is
    large, or seen."""
    interval = gain.interval(_apart(suspect))
    share = gain.mean_ns / context.step_ns
    least = NOTICEABLE if suspect.counted or suspect.is_regular else IRREGULAR
    # a device was seen without work because of it: a long wait in a single step is no noise of the steps
    seen = suspect.saved_ns is not None and CAUSES[suspect.cause.value].of_host and not context.on_cpu
    return (interval is None or interval[0] > 0 or seen) and share >= least


def _what_if(context: ReplayContext, kind: WhatIfKind, edited: Edited, gain: Gain) -> WhatIf:
    step_ns, margin, on_cpu = context.step_ns - gain.mean_ns, gain.margin(), context.job.processes[0].on_cpu
    at_most = kind.more_on_cpus and on_cpu
    low_ns = step_ns
    if gain.best is not None:
        low_ns = context.step_ns - float((gain.before - gain.best).mean())
        margin = margin or 0.0
    if margin is not None and on_cpu:
        margin = float(np.hypot(margin, NORMAL * BETWEEN_RUNS * step_ns))
    return WhatIf(
        name=kind.name,
        meaning=edited.meaning or kind.meaning,
        step_ns=round(step_ns),
        low_ns=None if margin is None or at_most else round(low_ns - margin),
        high_ns=None if margin is None or kind.bound else round(step_ns + margin),
        gain=gain.mean_ns / context.step_ns,
        bound=kind.bound,
        at_most=at_most,
        ranged=gain.best is not None,
        same_work=kind.same_work,
        per=edited.per,
    )


def _told(context: ReplayContext, suspect: Suspect, gain: Gain) -> TimeLost:
    interval = gain.interval(_apart(suspect))
    lines, hits = line_shares(context, suspect), np.flatnonzero(suspect.steps)
    first = context.job.processes[suspect.processes[0]]
    is_own = suspect.where is not None and owner_of(suspect.where.file) is Owner.USER
    return TimeLost(
        cause=suspect.cause.value,
        ranks=[context.job.processes[p].rank for p in suspect.processes],
        phase=None if suspect.phase is None else PHASES[suspect.phase],
        every=suspect.every,
        lost_ns=round(gain.mean_ns),
        low_ns=None if interval is None else round(interval[0]),
        high_ns=None if interval is None else round(interval[1]),
        share=gain.mean_ns / context.step_ns,
        standing=suspect.standing,
        what=suspect.what,
        where=suspect.where if is_own or not lines else lines[0].where,
        lines=lines,
        evidence=suspect.evidence,
        # the beginning of the first step that it hits, on the clock of the first process that does it
        at_ns=int(first.time_ns[first.step_begin[hits[0]]]) if len(hits) else None,
        at_rank=first.rank if len(hits) else None,
    )


def _at_lines(context: ReplayContext, suspected: Sequence[Suspect], found: Sequence[TimeLost]) -> list[TimeLost]:
    """Findings as shares, each with the lines of the first suspicion of its cause."""
    of_cause = {suspect.cause.value: suspect for suspect in reversed(suspected)}
    lines = {own.cause: line_shares(context, of_cause[own.cause]) for own in found if own.cause in of_cause}
    where = {cause: {"lines": shares, "where": shares[0].where} for cause, shares in lines.items() if shares}
    return [own.model_copy(update=where.get(own.cause, {})) for own in found]
