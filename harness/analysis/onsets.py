"""Where a series of step times jumps: without warm-up and without what repeats in a period. Knows arrays only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis import trend

F64 = NDArray[np.float64]
Ints = NDArray[np.intp]
WARM_UP = 30  # steps at the start: if they are slow, that is no change of pace
_FACTOR = 1.3  # of the steps after it
_RANKS = 64  # of many ranks, those whose median is the job's step
_ASIDE = 2  # steps on each side
_LONGEST_PERIOD = 32  # steps
_PERIODIC = 0.25  # of the absolute deviations, that a period must explain
SHORTEST = 12  # steps of a level
LEAST_JUMP = 0.065  # of the logarithm of the duration
NEAR = 200  # steps on each side of a jump that say how large it is
_CLIPPED = 3.0  # scores, in standard deviations
_CANDIDATE = 5.0  # standard deviations of the scores' sum, if steps were independent
# How large a jump must be in standard errors by the long-run variance, and how abrupt in times the distance of medians
# side by side that is rare in noise: one of these pairs.
_LEAST = ((5.5, 1.15), (3.0, 2.2))
_BEYOND = 0.75  # of the steps on each side are on their own side of the jump's middle
_ABRUPT = 0.5  # of the jump happens within SHORTEST steps
_BLOCKS = (6, 12, 24, 48)  # steps
_FEWEST_BLOCKS = 6
_AROUND = 40  # steps on each side in which the place of a jump is searched
_CLASSES = 10  # of values
_FREEDOM = 3.0  # degrees of freedom of Student's t: the tails of step times
_INSIDE = 0.95
_FEWEST_GROWING = 16  # steps
LEAST_GROWTH = 0.14  # of the logarithm of the duration, from the first quarter to the last
_COMPARED = 400  # steps, of more
_SD_PER_MAD = 1.4826  # of a normal distribution


def job_step(steps: F64) -> F64:
    """The job's step: the median over ranks; of many ranks, over some that are spread evenly."""
    some = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _RANKS)).astype(int))]
    if not np.isnan(some).any():
        return np.asarray(np.median(some, axis=0))
    job = np.full(some.shape[1], np.nan)
    there = ~np.isnan(some).all(axis=0)
    job[there] = np.nanmedian(some[:, there], axis=0)
    return job


def warm_up(step_times: F64) -> int:
    """How many leading steps are warm-up: each much longer than the median of the next ones."""
    n = 0
    while n < min(WARM_UP, len(step_times) - 1) and step_times[n] > _FACTOR * np.median(
        step_times[n + 1 : n + 1 + 2 * WARM_UP]
    ):
        n += 1
    return n


def without_period(y: F64, number: Ints) -> tuple[F64, int]:
    """The series without what repeats each K-th step, as gradient accumulation makes it; and K, 1 without any.

    y: log durations; number: of each step. K is the shortest period that explains most of the deviations from the
    median of the steps around.
    """
    width = _LONGEST_PERIOD  # even: of two levels in turn, the median is between them
    padded = np.pad(y, (width // 2, width // 2 - 1), mode="edge")
    rest = y - np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    alone = float(np.abs(rest).mean())
    if not alone:
        return y, 1
    explained = {}
    for period in range(2, min(_LONGEST_PERIOD, len(y) // 8) + 1):
        pattern = _pattern(rest, number, period)
        explained[period] = 1 - float(np.abs(rest - pattern[number % period]).mean()) / alone
    most = max(explained.values(), default=0.0)
    if most < _PERIODIC:
        return y, 1
    period = next(each for each, share in explained.items() if share >= 0.9 * most)
    return y - _pattern(rest, number, period)[number % period], period


def _pattern(rest: F64, number: Ints, period: int) -> F64:
    turns = [rest[number % period == turn] for turn in range(period)]
    return np.array([np.median(each) if len(each) else 0.0 for each in turns])


def in_turns(values: F64, turn: int) -> F64:
    """Means of `turn` neighbours along the last axis: with two levels in turn, a median of steps is either."""
    whole = values.shape[-1] // turn * turn
    return np.asarray(values[..., :whole].reshape(*values.shape[:-1], -1, turn).mean(axis=-1))


def floor(y: F64) -> F64:
    """The least of each step and its two neighbours on both sides.

    Where other programs use the machine, they make some steps longer and none shorter: the least of a few varies less.
    """
    padded = np.pad(y, _ASIDE, mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * _ASIDE + 1).min(axis=1))


_IN_ORDER, _BY_CHANCE = 0.4, 4.0  # Kendall's tau, and its standard deviations


class Onset(NamedTuple):
    """The first step of a new level, and the ends of its 95 % interval. All are indices into the series."""

    at: int
    low: int
    high: int


def jumps(y: F64) -> list[int]:
    """The first index of each new level of a series of log durations, sorted. Empty: it is steady."""
    chosen: list[int] = []
    for begin, at, end in sorted(_candidates(y), key=lambda x: x[2] - x[0]):
        if not any(begin < other < end for other in chosen):
            chosen.append(at)
    return _pruned(y, sorted(chosen))


def grows(y: F64) -> bool:
    """Whether a series of log durations becomes larger little by little: as a line, and so steadily that chance does
    not explain the order of its values (Mann, Econometrica 1945).

    >>> grows(np.linspace(0, 1, 24)), grows(np.repeat([0.0, 1.0], 12)), grows(np.zeros(24))
    (True, False, False)
    """
    if len(y) < _FEWEST_GROWING:
        return False
    some = y[np.unique(np.linspace(0, len(y) - 1, min(len(y), _COMPARED)).astype(int))]
    n = len(some)
    first, *_, last = trend.quarters(some)
    tau = trend.order(some)
    by_chance = np.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))  # the standard deviation of tau
    in_order = tau > max(_IN_ORDER, _BY_CHANCE * float(by_chance))
    return last - first >= LEAST_GROWTH and in_order and trend.is_line(some)


def neighbours(at: list[int], count: int) -> list[tuple[int, int, int]]:
    """Each jump between the one before and the next: begin, the jump, end. count: of the series' steps.

    >>> neighbours([3, 7], 9)
    [(0, 3, 7), (3, 7, 9)]
    """
    ends = [0, *at, count]
    return list(zip(ends, at, ends[2:], strict=False))


def _candidates(y: F64) -> Iterator[tuple[int, int, int]]:
    """Intervals of the series with a jump in the middle: begin, the new level's first index, end."""
    for begin, end in _seeded(len(y)):
        part = y[begin:end]
        at, height = _highest(_scores(part))
        if height > _CANDIDATE and _strength(part, at) >= 1:
            yield begin, begin + at, end


def _seeded(count: int) -> Iterator[tuple[int, int]]:
    """Intervals of lengths that double, each half covered by the next one of its length."""
    length = 3 * SHORTEST
    while length < count:
        yield from ((begin, begin + length) for begin in range(0, count - length, length // 2))
        yield count - length, count
        length *= 2
    if count >= 2 * SHORTEST:
        yield 0, count


def _scores(y: F64) -> F64:
    """Distances from the median in standard deviations of the noise from step to step, clipped."""
    noise = max(spread(np.diff(y)) / np.sqrt(2), 1e-4)
    return np.asarray(np.clip((y - np.median(y)) / noise, -_CLIPPED, _CLIPPED))


def _highest(u: F64) -> tuple[int, float]:
    """Where the CUSUM statistic is highest, and its height."""
    n = len(u)
    left = np.arange(SHORTEST, n - SHORTEST + 1)
    sums = np.cumsum(u)
    height = np.abs(sums[left - 1] - left / n * sums[-1]) * np.sqrt(n / (left * (n - left)))
    best = int(np.argmax(height))
    return int(left[best]), float(height[best])


def spread(x: F64) -> float:
    """A standard deviation that outliers do not move: of the median absolute deviation."""
    return _SD_PER_MAD * float(np.median(np.abs(x - np.median(x)))) if len(x) else 0.0


class _Noise(NamedTuple):
    """Of a series without its jumps. deviation: by the long-run variance; wander: of `_wander`."""

    deviation: float
    wander: float


def _strength(y: F64, at: int, noise: _Noise | None = None) -> float:
    """By how much the levels before and from `at` differ, over the least difference that counts: from 1 on it does.

    noise: without it, that of `y` itself.
    """
    before, after = y[max(at - NEAR, 0) : at], y[at : at + NEAR]
    low, high = float(np.median(before)), float(np.median(after))
    jump, sign, middle = abs(high - low), np.sign(high - low), (low + high) / 2
    if jump < LEAST_JUMP:
        return 0.0
    apart = min(np.mean(sign * (middle - before) > 0), np.mean(sign * (after - middle) > 0)) / _BEYOND
    local = float(sign * (np.median(after[:SHORTEST]) - np.median(before[-SHORTEST:])))
    if min(apart, local / jump / _ABRUPT) < 1:
        return 0.0
    noise = noise or _noise_of(np.concatenate([before - low, after - high]))
    error = noise.deviation * float(np.sqrt(1 / len(before) + 1 / len(after)))
    size, edge = jump / max(error, 1e-9), local / max(noise.wander, 1e-9)
    return max(min(size / least_size, edge / least_edge) for least_size, least_edge in _LEAST)


def _noise_of(rest: F64) -> _Noise:
    return _Noise(long_run_deviation(rest), _wander(rest))


def _wander(noise: F64) -> float:
    """How far medians of SHORTEST steps side by side are apart in the noise itself: the 98th percentile."""
    if len(noise) < 4 * SHORTEST:
        return 0.0
    medians = np.median(np.lib.stride_tricks.sliding_window_view(noise, SHORTEST)[::3], axis=1)
    return float(np.quantile(np.abs(medians[SHORTEST // 3 :] - medians[: -SHORTEST // 3]), 0.98))


def long_run_deviation(noise: F64) -> float:
    """The square root of the long-run variance of a median: the largest over the lengths of blocks."""
    found = 1.25 * spread(noise)
    for length in _BLOCKS:
        blocks = len(noise) // length
        if blocks < _FEWEST_BLOCKS:
            break
        medians = np.median(noise[: blocks * length].reshape(blocks, length), axis=1)
        found = max(found, float(np.sqrt(length)) * spread(medians) * (1 + 3 / blocks))
    return found


def _pruned(y: F64, chosen: list[int]) -> list[int]:
    """Without those that do not stand out between their neighbours; their places are found anew.

    Of neighbours that do not stand out, the weakest goes first: without it the others have longer levels.
    """
    while chosen:
        chosen = _moved(y, chosen)
        noise = _noise_of(y - levels(y, chosen))
        strengths = [
            _strength(y[begin:end], at - begin, noise) if min(at - begin, end - at) >= SHORTEST - 2 else 0.0
            for begin, at, end in neighbours(chosen, len(y))
        ]
        around = [np.inf, *strengths, np.inf]
        kept = [
            at
            for at, left, own, right in zip(chosen, around, strengths, around[2:], strict=False)
            if own >= 1 or own > min(left, right)
        ]
        if len(kept) == len(chosen):
            break
        chosen = kept
    return chosen


def _moved(y: F64, chosen: list[int]) -> list[int]:
    """Each jump where the sum of absolute deviations from both medians is least."""
    places = {_least_deviation(y, *where) for where in neighbours(chosen, len(y))}
    return sorted(places - {0, len(y)})


def _least_deviation(y: F64, begin: int, at: int, end: int) -> int:
    first = max(begin, at - NEAR)
    part, here = y[first : min(end, at + NEAR)], at - first
    before, after = float(np.median(part[:here])), float(np.median(part[here:]))
    gain = np.cumsum(np.abs(part - after) - np.abs(part - before))
    return first + int(np.argmax(gain)) + 1


def levels(y: F64, at: list[int]) -> F64:
    """The series' level at each index: the median between two jumps."""
    ends = [0, *at, len(y)]
    parts = [np.full(end - begin, np.median(y[begin:end])) for begin, end in pairwise(ends)]
    return np.concatenate(parts)


def likelihoods(y: F64, at: int, begin: int, end: int) -> tuple[int, F64]:
    """The log-likelihood of each place of a jump: the first place, and one value per place from there on.

    `at` is about where the jump is; begin, end: the neighbouring jumps.
    """
    begin, end = max(begin, at - NEAR), min(end, at + NEAR)
    margin = 5  # steps around `at` that may be on either side
    low = float(np.median(y[begin : max(at - margin, begin + 1)]))
    high = float(np.median(y[min(at + margin, end - 1) : end]))
    first, last = max(begin + 1, at - _AROUND), min(end - 1, at + _AROUND)
    places = np.arange(first, last + 1)
    here = np.arange(max(begin, first - 2), min(end, last + 2))
    noise = y[begin:end] - np.where(np.arange(begin, end) < at, low, high)
    persistence = _persistence(noise)
    rest = y[here] - np.where(here[None, :] < places[:, None], low, high)
    new = rest[:, 1:] - persistence * rest[:, :-1]
    scale = max(spread(noise[1:] - persistence * noise[:-1]), 1e-4)
    each = -(_FREEDOM + 1) / 2 * np.log1p((new / scale) ** 2 / _FREEDOM)
    return first, each.sum(axis=1)


def by_values(y: F64, at: int, begin: int, end: int) -> tuple[int, F64]:
    """As `likelihoods`, for noise of any distribution: from how often a value comes before and after.

    Values are in classes of equal size; each has one occurrence more than it was seen (Laplace's rule).
    """
    margin = 5
    before = y[max(begin, at - NEAR) : max(at - margin, begin + 1)]
    after = y[min(at + margin, end - 1) : min(end, at + NEAR)]
    first, last = max(begin + 1, at - _AROUND), min(end - 1, at + _AROUND)
    edges = np.quantile(np.concatenate([before, after]), np.linspace(0, 1, _CLASSES + 1)[1:-1])
    shares = [np.bincount(np.searchsorted(edges, side), minlength=_CLASSES) + 1.0 for side in (before, after)]
    ratio = np.log(shares[0] / shares[0].sum()) - np.log(shares[1] / shares[1].sum())
    return first, np.cumsum(ratio[np.searchsorted(edges, y[first - 1 : last])])


def _persistence(noise: F64) -> float:
    """Lag-1 autocorrelation of the clipped noise, 0 to 0.9."""
    clipped = np.clip(noise, -_CLIPPED * spread(noise), _CLIPPED * spread(noise))
    power = float(np.dot(clipped, clipped))
    return min(max(float(np.dot(clipped[1:], clipped[:-1])) / power, 0.0), 0.9) if power else 0.0


def placed(first: int, likelihood: F64) -> Onset:
    """The likeliest place, with the shortest interval around it that has 95 % of the likelihood."""
    share = np.exp(likelihood - likelihood.max())
    share /= share.sum()
    low = high = int(np.argmax(share))
    while share[low : high + 1].sum() < _INSIDE:
        left = share[low - 1] if low else -1.0
        right = share[high + 1] if high + 1 < len(share) else -1.0
        low, high = (low - 1, high) if left >= right else (low, high + 1)
    return Onset(first + int(np.argmax(share)), first + low, first + high)
