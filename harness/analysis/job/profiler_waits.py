"""Which collectives wait for a rank's profiler, and not for its work: the first of a window, where one rank's profiler
started later, and the last, where one was already stopping.

A profiler takes unlike times to start on each rank. The rank that is last begins its window last, and the others, whose
windows run already, wait for it in their first collective. Knows the matched collectives only, no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.matching import JobCollectives, MatchedGroup
from harness.analysis.process.part import RankPart
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Clock, Problem, RecordingVerdict, Window, problem_texts
from harness.traces.trace import I64

AGREE = 0.1  # ends that lie apart by at most this share of the starts' spread belong to one moment
EXPLAINED = 0.5  # the windows' starts explain a spread if at most this share of it is left without them
OUTSTANDING = 2.0  # times the spread of every other collective: a rank that is late by itself is late again
FEWEST_OTHERS = 3  # collectives to compare it with
FEWEST_STEPS = 3  # counted by each rank, to compare the last collective of a step with those of other steps
NOTICEABLE = 0.01  # of the ranks' windows: less changes no number
DOUBTFUL = 0.05  # of the ranks' windows, from which their shares of communication mislead

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class _ArrivalSpread:
    """How far the n instances of one matched group are apart on aligned clocks. Arrays of length n."""

    group: MatchedGroup
    starts_apart_ns: I64
    ends_apart_ns: I64
    left_apart_ns: I64  # the starts, each counted from its rank's own window
    windows_apart_ns: int
    waiting_ns: I64  # all ranks together, beyond the fastest
    last: Mask  # the job's last instance, where it may wait for a profiler

    @property
    def meets(self) -> Mask:
        """Instances inside the window that end at one moment although they do not start at one."""
        return self.group.inside & (self.ends_apart_ns <= AGREE * self.starts_apart_ns)

    @property
    def leading(self) -> Mask:
        """The group's first recorded instances, as long as their spread is that of the windows' starts. After an
        earlier one, outside the window, every profiler would run already."""
        explained = self.meets & (self.left_apart_ns <= EXPLAINED * self.starts_apart_ns)
        return np.logical_and.accumulate(explained)

    @property
    def others(self) -> I64:
        """How far the starts of the instances are apart that cannot wait for a profiler."""
        return self.starts_apart_ns[self.group.inside & ~self.leading & ~self.last]

    def outstanding(self, usual_ns: int) -> Mask:
        """The instances that may wait for a profiler and are far from what is usual."""
        return (self.leading | self.last) & (self.starts_apart_ns > OUTSTANDING * usual_ns)


def without_profilers(
    job: JobCollectives, parts: Sequence[RankPart], clocks: dict[str, Clock]
) -> tuple[JobCollectives, list[Problem]]:
    """The job with the instances marked that wait for a profiler, and what a reader must know of them."""
    spreads = _with_last([_spread(m, clocks) for m in job.matched if _is_comparable(m, clocks)])
    others = np.concatenate([s.others for s in spreads]) if spreads else np.empty(0, np.int64)
    if len(others) < FEWEST_OTHERS:
        return job, []
    usual_ns = int(others.max())
    recorded_ns = sum(part.window_end_ns - part.window_start_ns for part in parts)
    waiting_ns = sum(int(s.waiting_ns[s.outstanding(usual_ns)].sum()) for s in spreads)
    if not waiting_ns or waiting_ns < NOTICEABLE * recorded_ns:
        return job, []
    marked = {id(s.group): replace(s.group, of_profiler=s.outstanding(usual_ns)) for s in spreads}
    severity = RecordingVerdict.DOUBTFUL if waiting_ns >= DOUBTFUL * recorded_ns else RecordingVerdict.GOOD
    what = problem_texts.PROFILER_WAITS
    return replace(job, matched=[marked.get(id(m), m) for m in job.matched]), [
        Problem(severity=severity, what=what, evidence=_evidence(s, at, usual_ns, recorded_ns))
        for s in spreads
        for at in np.flatnonzero(s.outstanding(usual_ns)).tolist()
    ]


def _is_comparable(m: MatchedGroup, clocks: dict[str, Clock]) -> bool:
    """Whether the starts of the group's ranks, and of their windows, can be compared: windows of marked steps only,
    since neither the extent of a device's work nor a kernel's periods say when a recording began."""
    marked = all(
        part.window is Window.STEPS and part.steps.durations_ns and not by_periodicity(part.steps.source)
        for part in m.parts
    )
    return marked and len(m.parts) > 1 and m.complete and all(clock in clocks for clock in m.clocks)


def _spread(m: MatchedGroup, clocks: dict[str, Clock]) -> _ArrivalSpread:
    offset = np.array([clocks[clock].offset_ns for clock in m.clocks])[:, None]
    begun = np.array([part.window_start_ns + (part.epoch_ns or 0) for part in m.parts])[:, None] - offset
    start, took = m.start_ns - offset, m.end_ns - m.start_ns
    return _ArrivalSpread(
        group=m,
        starts_apart_ns=np.ptp(start, axis=0),
        ends_apart_ns=np.ptp(m.end_ns - offset, axis=0),
        left_apart_ns=np.ptp(start - begun, axis=0),
        windows_apart_ns=int(np.ptp(begun)),
        waiting_ns=(took - took.min(axis=0)).sum(axis=0),
        last=np.zeros(len(m.inside), np.bool_),
    )


def _with_last(spreads: Sequence[_ArrivalSpread]) -> list[_ArrivalSpread]:
    """With the job's last recorded instance marked, where other steps show how it is without a profiler. Before a later
    one, outside the window, no profiler would be stopping yet."""
    found = list(spreads)
    ends = [(int(s.group.end_ns[0, -1]), i) for i, s in enumerate(found) if len(s.last)]
    if not ends:
        return found
    _, i = max(ends)
    steps = min(len(part.steps.durations_ns) for part in found[i].group.parts)
    at = np.arange(len(found[i].last)) == len(found[i].last) - 1
    found[i] = replace(found[i], last=at & found[i].meets & (steps >= FEWEST_STEPS))
    return found


def _evidence(s: _ArrivalSpread, at: int, usual_ns: int, recorded_ns: int) -> str:
    m, waiting_ns = s.group, int(s.waiting_ns[at])
    starts, ends = (_ms(int(apart[at])) for apart in (s.starts_apart_ns, s.ends_apart_ns))
    windows = f", as the windows' are ({_ms(s.windows_apart_ns)})" if s.leading[at] else ""
    return (
        f"{'first' if s.leading[at] else 'last'} {m.keys[int(m.key[at])].kind} of the window: starts {starts} apart"
        f"{windows}, ends {ends}, other starts at most {_ms(usual_ns)}. Its waiting, {_ms(waiting_ns)} of all ranks "
        f"({100 * waiting_ns / recorded_ns:.1f} % of their windows), is left out of waiting, start skew and "
        "stragglers; it stays in the times of communication and in the efficiencies"
    )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms"
