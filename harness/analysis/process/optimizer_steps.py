"""Steps that the ranges of their parts count: PyTorch's own of an optimizer (`Optimizer.step#AdamW.step`), where the
program marks no step, or several optimizer steps as one; or those of a program's passes.

A step ends with its optimizer. Where one name has several ranges in a step, as with the two optimizers of a GAN, the
work between them recurs only after so many. Knows nothing of other marks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching, used
from harness.analysis.process.phases import Phase, phase_of_name
from harness.traces.trace import I64, Events, Ranges

_PREFIX = "Optimizer.step#"
_MOST_RANGES = 5000  # more are no steps
_MOST_IN_STEP = 256
_NAMES = 64  # of kernels, those with most work: they tell the work of two ranges apart
_ALIKE, _ALIKE_OF_FEW, _FEW = 0.3, 0.1, 4  # of their work, by so much the steps may differ
_BETTER, _SPARE = 2.0, 0.02  # by so much a longer recurrence must be more alike
_REST = 0.1  # of a step: so much after the last optimizer belongs to its step, if the mark ends there
_COVERED = 0.5  # of the recording: if less of it is steps, it is about something else, such as its first use
_LARGE_FIRST = 2.0  # the first one has no more than so many times the work, or the time, of the median


class CountedSteps(NamedTuple):
    """n steps, one after the other. bounds_ns: n + 1 times."""

    name: str
    thread: int
    bounds_ns: I64


def optimizer_steps(
    ranges: Ranges, events: Events, names: list[str], inside: tuple[int, int] | None = None
) -> CountedSteps | None:
    """The steps, if there are two or more and they can be told. inside: start and end of a mark of the program, with
    which the first step begins and the last one ends; without it, what was recorded before the first optimizer's end
    is left out, and the steps must be half of the recording."""
    found = _rarest(ranges, names, inside)
    if found is None:
        return None
    name, thread, ends = found
    bounds = ends if inside is None else np.append(inside[0], ends)
    if not 2 < len(bounds) <= _MOST_RANGES or not (np.diff(bounds) > 0).all():
        return None
    launched = np.where(events.launch_ns >= 0, events.launch_ns, events.start_ns)
    if inside is None and len(launched) and bounds[-1] - bounds[0] < _COVERED * np.ptp(launched):
        return None
    work = _work(events, launched, bounds)
    in_step = _recurs_after(work)
    if in_step is None:
        return None
    bounds = bounds[::in_step]
    sums = np.add.reduceat(work.sum(axis=1), np.arange(0, len(work), in_step))[: len(bounds) - 1]
    is_one_step = inside is not None and (len(sums) < 2 or sums[0] > _LARGE_FIRST * np.median(sums))
    if inside is not None and 0 < inside[1] - bounds[-1] < _REST * np.median(np.diff(bounds)):
        bounds = np.append(bounds[:-1], inside[1])
    return None if is_one_step else CountedSteps(name, thread, bounds)


def passes(ranges: Ranges, names: list[str]) -> CountedSteps | None:
    """Steps from one range of forward to the next, where as many of backward, or of an optimizer, lie between them.
    What a cold program does before it is warm is no step: it belongs to the start."""
    by_phase: dict[Phase, list[int]] = {}
    for name in used(ranges.name):
        by_phase.setdefault(phase_of_name(names[name]), []).append(name)
    rows = {phase: np.flatnonzero(ranges.name == of[0]) for phase, of in by_phase.items() if len(of) == 1}
    forward = rows.get(Phase.FORWARD, np.empty(0, np.int64))
    follow = [rows[phase] for phase in (Phase.BACKWARD, Phase.OPTIMIZER) if phase in rows]
    ends = [np.sort(ranges.end_ns[own]) for own in follow if len(own) == len(forward) > 1]
    if not ends:
        return None
    start, end = np.sort(ranges.start_ns[forward]), np.maximum.reduce(ends)
    bounds = np.append(start, end[-1])
    warm = int((np.diff(bounds) <= _LARGE_FIRST * np.median(np.diff(bounds))).argmax())
    if (end <= start).any() or (end[:-1] > start[1:]).any() or len(start) - warm < 2:
        return None
    name = names[ranges.name[forward[0]]]  # its own name would hide it, as that of a mark
    return CountedSteps(f"{name} to {name}", int(ranges.thread[forward[0]]), bounds[warm:])


def _rarest(ranges: Ranges, names: list[str], inside: tuple[int, int] | None) -> tuple[str, int, I64] | None:
    """Of the optimizer with fewest ranges, and of several such of that which ends a step: name, thread, its ends."""
    chosen = (ranges.is_open == 0) & matching(ranges.name, names, lambda name: name.startswith(_PREFIX))
    if inside is not None:
        chosen &= (ranges.start_ns >= inside[0]) & (ranges.end_ns <= inside[1])
    rows = np.flatnonzero(chosen)
    if len(rows) == 0:
        return None
    ends = {name: ranges.end_ns[rows[ranges.name[rows] == name]] for name in used(ranges.name[rows])}
    name = min(ends, key=lambda each: (len(ends[each]), -int(ends[each].max())))
    return names[name], int(ranges.thread[rows[ranges.name[rows] == name][0]]), np.sort(ends[name])


def _work(events: Events, launched: I64, bounds: I64) -> NDArray[np.float64]:
    """How many events of each name were launched between two bounds, as rows."""
    at = np.searchsorted(bounds, launched, side="right") - 1
    within = (at >= 0) & (at < len(bounds) - 1)
    found, name = np.unique(events.name[within], return_inverse=True)
    most = np.argsort(-np.bincount(name, minlength=len(found)), kind="stable")[:_NAMES]
    place = np.full(len(found) + 1, -1, np.int64)
    place[most] = np.arange(len(most))
    kept = place[name] >= 0
    counts = np.zeros((len(bounds) - 1, len(most)))
    np.add.at(counts, (at[within][kept], place[name[kept]]), 1)
    return counts


def _recurs_after(work: NDArray[np.float64]) -> int | None:
    """After how many ranges the same work is done again; None: it never is."""
    most = min(len(work) // 2, _MOST_IN_STEP) if len(work) >= _FEW else 1
    unlike = [_unlike(work[:-k], work[k:]) for k in range(1, most + 1)]
    best = min(unlike)
    if best > (_ALIKE if len(work) >= _FEW else _ALIKE_OF_FEW):
        return None
    return 1 + next(k for k, each in enumerate(unlike) if each <= _BETTER * best + _SPARE)


def _unlike(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The mean share of the work that two rows do not have in common."""
    both = (a + b).sum(axis=1)
    apart = np.abs(a - b).sum(axis=1)
    return float(np.divide(apart, both, out=np.zeros_like(both), where=both > 0).mean())
