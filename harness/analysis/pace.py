"""Changes of a run's pace, and which ranks' own time changed, without the time in which they waited for others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.onsets import NEAR, Level, job_step, levels, warm_up, without_period

F64 = NDArray[np.float64]
Ints = NDArray[np.intp]
WAITING = ("backward",)  # DDP: the phase in which a rank waits for the others' gradients
_MOST_LACKING = 0.25  # of the steps
_NEAREST = 9  # steps
_COUNTS = 0.35  # of the job's change, by which a rank's own time must have changed
_BESIDE = 0.5  # of the change of the rank that changed most
_ALL = 0.9  # of the ranks


def own_times(
    step: F64,
    phases: Mapping[str, F64],
    waiting: Collection[str] = WAITING,
    *,
    told: F64 | None = None,
    on_host: bool = True,
) -> F64:
    """The time of each step in which a rank did not wait for other ranks, as far as phases tell: (ranks, steps).

    step, phases: (ranks, steps), NaN where not known. phases: "data", "forward", "backward", "optimizer". waiting: the
    phases in which collectives run: in them computing cannot be told from waiting, so they are left out entirely. told:
    (ranks, steps), the time without waiting, by the starts of collectives: with it backward counts up to the wait, if
    ranks wait in no other phase and it is known in most steps. on_host: the steps are computed by the host; on a GPU
    the time in no phase is waiting for the device, and with it for other ranks, so it is left out too.
    """
    if not on_host:
        return np.asarray(sum((phases[name] for name in phases if name not in waiting), np.zeros_like(step)))
    own = step - sum(phases[name] for name in phases if name in waiting)
    if told is not None and tuple(waiting) == WAITING:
        inside = _before_waiting(step, phases[WAITING[0]], told)
        own = own if inside is None else own + inside
    return np.asarray(own)


def _before_waiting(step: F64, backward: F64, told: F64) -> F64 | None:
    """The part of backward before the wait for other ranks, if each rank's own time is known in most of its steps.

    step, backward, told: (ranks, steps), NaN where not known. A step whose own time is not known, as the last ones of
    a training, gets the median of the nearest ones that are.
    """
    found = np.clip(backward - (step - told), 0, None)
    wanted, lacking = ~np.isnan(backward), np.isnan(found)
    if not wanted.any() or np.any((wanted & lacking).mean(axis=1) > _MOST_LACKING):
        return None
    for row, holes in zip(found, wanted & lacking, strict=True):
        there = np.flatnonzero(~np.isnan(row))
        known = row[there]
        for at in np.flatnonzero(holes):
            place = int(np.searchsorted(there, at))
            near = slice(max(0, place - _NEAREST), place + _NEAREST)
            order = np.argsort(np.abs(there[near] - at), kind="stable")[:_NEAREST]
            row[at] = np.median(known[near][order])
    return found


class DetectedChange(NamedTuple):
    """One change of pace. Durations in the unit of the input.

    step: the first step of the new pace. before, after: median durations of the job's step; ratio: after / before.
    ranks: those whose own time changed; all ranks if all changed, or if nobody can be named (`named` is False). lasts:
    the last step of the new pace; None: to the end. since: the first step of the pace before.
    """

    step: int
    before: float
    after: float
    ratio: float
    ranks: tuple[int, ...]
    named: bool
    lasts: int | None
    since: int = 0


def changes(steps: F64, own_time: F64 | None = None) -> list[DetectedChange]:
    """Each change of pace, in the order of steps.

    steps: (ranks, steps), durations; NaN where not known. own_time: the same without waiting for other ranks; NaN or
    None: not known.

    A change is one of the level of the job's step, which is the median over the ranks (`onsets.levels`). It is that of
    the ranks whose own time changed: by the medians of each rank's own time before and after, a rank is one of them if
    they differ by at least half as much as those of the rank that changed most. Slow steps that are few, or that come
    in a period, and slow steps at the start are no change.
    """
    job = job_step(steps) if steps.size else np.empty(0)
    known = np.flatnonzero(job > 0)
    if not len(known):
        return []
    known = known[warm_up(job[known]) :]
    found = levels(without_period(job[known], known))
    return [_change(level, known, len(steps), own_time) for level in found]


def _change(level: Level, known: Ints, count: int, own_time: F64 | None) -> DetectedChange:
    """A change of level with the numbers of the training's steps, and its ranks. known: the number of each step of the
    series; count: of ranks."""
    sides = known[max(level.since, level.at - NEAR) : level.at], known[level.at : min(level.end, level.at + NEAR)]
    ranks = () if own_time is None else _changed(own_time, sides, level.after - level.before)
    return DetectedChange(
        step=int(known[level.at]),
        before=level.before,
        after=level.after,
        ratio=level.after / level.before,
        ranks=ranks or tuple(range(count)),
        named=bool(ranks) or count == 1,
        lasts=None if level.end == len(known) else int(known[level.end]) - 1,
        since=int(known[level.since]),
    )


def _changed(own_time: F64, sides: tuple[Ints, Ints], change: float) -> tuple[int, ...]:
    """The ranks whose own time changed; empty: nobody's did. sides: the steps before and after; change: of the job's
    step."""
    even = [side[: len(side) // 2 * 2] for side in sides]  # of two levels in turn, the median is between them
    before, after = (medians(own_time[:, side]) for side in even)
    moved = np.sign(change) * (after - before)
    there = np.isfinite(moved)
    largest = float(np.max(moved, where=there, initial=0.0))
    if largest < _COUNTS * abs(change):
        return ()
    ranks = np.flatnonzero(there & (moved >= _BESIDE * largest))
    everyone = len(ranks) >= _ALL * np.count_nonzero(there)
    return tuple(range(len(moved))) if everyone else tuple(map(int, ranks))


def medians(values: F64) -> F64:
    """The median of each row, of what is known in it."""
    rows = [row[~np.isnan(row)] for row in values]
    return np.array([np.median(row) if len(row) else np.nan for row in rows])
