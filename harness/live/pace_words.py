"""Changes of pace and the slowest rank in sentences, with what shows it. Finds nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.common.format import amount, duration, percent, takes
from harness.live.onsets import NEAR
from harness.live.pace import Change
from harness.live.text import ranks_named

LEAST_COST = 0.03  # of the step: less waiting for the slowest rank is not worth a word
_CLEAR = 0.05  # of the step, by which a rank is slower than the others where it is clearly the slowest
FEWEST = 20  # steps
_ALWAYS, _OFTEN = 0.9, 0.3  # of the steps

_BLOCK = 10  # steps that are permuted together, because the noise of neighbours is alike
_DRAWS = 199
_CHANCE = 0.01


class Slowest(NamedTuple):
    """The rank that the others wait for.

    kind: "always" (in 90 % of the steps), "often" (30 %), "rarely", "in turns" (no rank stands out) or "never" (the
    others wait less than 3 % of a step). rank: None where no rank stands out. share: of the steps, in which it is
    clearly the slowest. costs: per step, in the input's unit: what a step would gain if the rank was only as slow as
    the next one; "in turns": how long the median rank waits for the slowest. chance: of a rank to be the slowest as
    often, or as expensively, if all ranks were alike (permutation test).
    """

    kind: str
    rank: int | None
    share: float
    costs: float
    chance: float


def slowest(own: F64, step: float) -> Slowest:
    """The rank that is the slowest.

    own: (ranks, steps), durations without waiting for other ranks, NaN where not known. step: the job's median step.
    Steps in which the own time of a rank is not known are left out.
    """
    known = own[:, ~np.isnan(own).any(axis=0)]
    ranks, count = known.shape
    if ranks < 2 or count < FEWEST or step <= 0:
        return Slowest("never", None, 0.0, 0.0, 1.0)
    middle, second = (ranks - 1) // 2, ranks - 2
    ordered = np.partition(known, (middle, second), axis=0)
    first = known.argmax(axis=0)
    top = known.max(axis=0)
    waiting = top - ordered[middle]
    costs = float(waiting.mean())
    if costs < LEAST_COST * step:
        return Slowest("never", None, 0.0, costs, 1.0)
    clear = (waiting > _CLEAR * step).astype(float)
    spent = np.bincount(first, waiting, ranks)
    rank = int(spent.argmax())
    chance = min(_by_chance(first, clear, ranks), _by_chance(first, waiting, ranks))
    if chance > _CHANCE or spent[rank] < _MOST_OF_IT * spent.sum():
        return Slowest("in turns", None, 0.0, costs, chance)
    share = float(clear[first == rank].sum() / count)
    kind = "always" if share >= _ALWAYS else "often" if share >= _OFTEN else "rarely"
    gain = float((top - ordered[second])[first == rank].sum() / count)
    return Slowest(kind, rank, share, gain, chance)


def _by_chance(first: NDArray[np.intp], weights: F64, ranks: int) -> float:
    """How often a rank gets as much, if in each block of steps the ranks change places at random."""
    most = np.bincount(first, weights, ranks).max()
    if not most:
        return 1.0
    dice = np.random.default_rng(0)
    block = np.arange(len(first)) // _BLOCK
    shifts = dice.integers(0, ranks, (_DRAWS, block[-1] + 1))
    drawn = [np.bincount((first + shift[block]) % ranks, weights, ranks).max() for shift in shifts]
    return (1 + int(np.count_nonzero(np.array(drawn) >= most))) / (1 + _DRAWS)


F64 = NDArray[np.float64]
CORE_WAIT = "core wait"  # among the phases: a rank's thread was ready to run and had no core
PAGE_FAULTS = "page faults"  # among the phases, but a number, not a time
PEAK_MEMORY = "peak memory"  # the same, in bytes
_PHASES = {"data": "data loading", "optimizer": "the optimizer"}
_MOST_OF_IT = 0.5  # of a change, by which a phase must have changed to be named
_MANY_FAULTS = 200  # more or fewer per step, and twice as many: they have to do with a change
_MORE_MEMORY = 1.05
_BACK = 0.3  # of a change, within which the pace is again what it was


def worth_telling(slowest_rank: Slowest, found: Sequence[Change]) -> bool:
    """Whether the slowest rank is told: the others wait, and no change tells the same of it."""
    told = any(change.named and change.ranks == (slowest_rank.rank,) for change in found)
    return slowest_rank.kind != "never" and not (told and slowest_rank.kind != "always")


def returns(before: Change, change: Change) -> bool:
    """Whether the pace is again about what it was before the earlier change."""
    opposite = (before.ratio > 1) != (change.ratio > 1)
    return opposite and abs(change.after - before.before) < _BACK * abs(before.after - before.before)


def change_sentence(change: Change, phase: str | None, unit_ns: float = 1.0) -> str:
    """One change in words. phase: the one that changed, if it is known."""
    if change.gradual:
        return (
            f"Steps become longer little by little: {duration(change.before * unit_ns)} up to step {change.step - 1}, "
            f"{duration(change.after * unit_ns)} from step {change.high} on{_where(change, phase)}."
        )
    between = "" if change.low == change.high else f" (between {change.low} and {change.high})"
    until = " on" if change.lasts is None else f" until step {change.lasts}"
    before, after = duration(change.before * unit_ns), duration(change.after * unit_ns)
    return (
        f"Steps take {takes(change.ratio)} from step {change.step}{between}{until}: "
        f"{before} before, {after} after{_where(change, phase)}."
    )


def _where(change: Change, phase: str | None) -> str:
    inside = "" if phase is None else f", in {_PHASES.get(phase, phase)}"
    if not change.named:
        return f"{inside}; which rank caused it cannot be known from these times" if len(change.ranks) > 1 else inside
    return f"; on {ranks_named(change.ranks)}{inside}"


def grown_phase(change: Change, phases: Mapping[str, F64]) -> str | None:
    """The phase that changed by most of the change, on the ranks that changed; None: none did, or it is not known."""
    times = {name: values for name, values in phases.items() if name not in (CORE_WAIT, PAGE_FAULTS, PEAK_MEMORY)}
    moved = {name: _moved(change, values) for name, values in times.items()}
    step = change.after - change.before
    shares = {name: each / step for name, each in moved.items() if np.isfinite(each)}
    best = max(shares, key=lambda name: shares[name], default=None)
    return best if best is not None and shares[best] >= _MOST_OF_IT else None


def _moved(change: Change, values: F64) -> float:
    """By how much a time of the ranks that changed became longer: its mean over them."""
    before, after = _medians(change, values[list(change.ranks)])
    return float(np.mean(after - before))


def _medians(change: Change, values: F64) -> tuple[F64, F64]:
    """Of each rank before and after: in the steps near the change, without its interval."""
    end = values.shape[1] if change.lasts is None else change.lasts + 1
    before = values[:, max(change.low - NEAR, min(change.since, change.low - 1)) : change.low]
    after = values[:, change.high : min(change.high + NEAR, end)]
    return _median(before), _median(after)


def _median(values: F64) -> F64:
    """Of each row, of what is known in it."""
    rows = [row[~np.isnan(row)] for row in values]
    return np.array([np.median(row) if len(row) else np.nan for row in rows])


def evidence(
    change: Change,
    own: F64 | None,
    phases: Mapping[str, F64],
    numbers: Sequence[int] | None = None,
    *,
    unit_ns: float = 1.0,
) -> str:
    """What shows who caused a change: the own times of the ranks that changed, waiting for a core, and page faults.

    numbers: the rank of each row, if that is not its index.
    """
    texts = []
    if change.named and own is not None and len(change.ranks) < len(own):
        ranks = change.ranks if numbers is None else [numbers[row] for row in change.ranks]
        texts.append(_own_times(change, own, ranks, unit_ns))
    waited = waited_for_cores(change, phases)
    if waited:
        longer = f"{duration(abs(waited) * unit_ns)} {'longer' if waited > 0 else 'shorter'}"
        texts.append(f"threads waited {longer} per step for a core, which other programs used")
    if change.gradual and PEAK_MEMORY in phases:
        before, after = (float(np.max(side)) for side in _medians(change, phases[PEAK_MEMORY][list(change.ranks)]))
        if after > _MORE_MEMORY * before:
            texts.append(
                f"peak memory: {amount(before)} before, {amount(after)} after: something may be kept from each step"
            )
    if PAGE_FAULTS in phases:
        before, after = (float(np.mean(side)) for side in _medians(change, phases[PAGE_FAULTS][list(change.ranks)]))
        slow, fast = (after, before) if change.ratio > 1 else (before, after)
        if slow - fast >= _MANY_FAULTS and slow >= 2 * fast:
            texts.append(
                f"page faults per step: {before:.0f} before, {after:.0f} after, as the C library gives freed memory "
                "back to the kernel; if MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ are 1073741824, it keeps the "
                "memory"
            )
    return "; ".join(texts)


def waited_for_cores(change: Change, phases: Mapping[str, F64]) -> float:
    """By how much longer per step threads waited for a core, if that is most of a change; else 0."""
    waited = _moved(change, phases[CORE_WAIT]) if CORE_WAIT in phases else 0.0
    return waited if waited / (change.after - change.before) > _MOST_OF_IT else 0.0


def _own_times(change: Change, own: F64, ranks: Sequence[int], unit_ns: float) -> str:
    before, after = _medians(change, own)
    changed = np.isin(np.arange(len(own)), change.ranks)
    others = ~changed & np.isfinite(before) & np.isfinite(after)
    means = [(float(np.mean(before[rows])), float(np.mean(after[rows]))) for rows in (changed, others) if rows.any()]
    texts = [f"{duration(low * unit_ns)} before, {duration(high * unit_ns)} after" for low, high in means]
    return f"time without waiting for other ranks, of {ranks_named(ranks)}: {'; of the others '.join(texts)}"


def slowest_sentence(found: Slowest, step: float | None, unit_ns: float = 1.0) -> str:
    """The slowest rank in words. step: the job's median step."""
    of_step = "" if not step else f" ({percent(found.costs / step)})"
    costs = f"{duration(found.costs * unit_ns)}{of_step}"
    if found.rank is None:
        return f"The ranks are the slowest in turns: half of them wait {costs} or more per step for the slowest one."
    often = {"always": "always the slowest", "often": "often the slowest", "rarely": "the slowest in few steps"}
    return (
        f"Rank {found.rank} is {often[found.kind]}: clearly in {percent(found.share)} of the steps. "
        f"If it was as fast as the next one, a step would be up to {costs} shorter."
    )
