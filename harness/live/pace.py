"""Changes of pace of a whole training: from which step on its steps became slower or faster, and on which ranks.

Knows arrays of step times only. Ranks that train together wait for each other, so all their steps become slower at
once; the rank that causes it is the one whose own time, without waiting, grew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.live import onsets
from harness.live.onsets import Onset
from harness.live.own_time import Culprits, Spot, culprits, own_jumps
from harness.live.series import WARM_UP, in_turns, job_step, warm_up, without_period

F64 = NDArray[np.float64]
Ints = NDArray[np.intp]
OWN = "own"  # the part that is all of a rank's own time
_FEWEST = 40  # steps, to speak of a change
_SHORT_PERIOD = 4  # steps, of which an unusual one is not rare
_COUNTS = 0.35  # of the job's change, by which a rank's own time must have changed
_SHARED = (
    0.5  # of a jump of own time, by which the job's step must have changed too, or may have within its noise
)
_RARE = 0.05  # of the steps are shorter than those in which no rank waited for a core
_WAITED = 0.5  # of a jump of own time, that waiting for a core explains


class Change(NamedTuple):
    """One change of pace. Durations in the unit of the input.

    step: the first step of the new pace; low, high: its 95 % interval. before, after: median durations of the job's
    step; ratio: after / before. ranks: those whose own time changed; all ranks if all changed, or if nobody can be
    named (`named` is False). lasts: the last step of the new pace; None: to the end. part: of the own time, that
    changed most; empty: not known. since: the first step of the pace before.
    """

    step: int
    low: int
    high: int
    before: float
    after: float
    ratio: float
    ranks: tuple[int, ...]
    named: bool
    lasts: int | None
    part: str = ""
    since: int = 0


def changes(
    steps: F64,
    own: F64 | Mapping[str, F64] | None = None,
    core_wait: F64 | None = None,
    waiting: Mapping[str, F64] | None = None,
) -> list[Change]:
    """Each change of pace, in the order of steps.

    steps: (ranks, steps), durations; NaN where not known. own: the same without waiting for other ranks, as a whole or
    its parts by name (`own_parts`): a change of a small part is seen in noise in which that of a step is not; NaN or
    None: not known. core_wait: the time in which a rank's thread was ready and had no core; what it explains is no
    change of a rank's own time. waiting: by name, the phases in which ranks wait; the least of the ranks is the time
    of the one that came last, which did not wait, so it tells of a change but not of a rank.

    Found are changes by 8 % and more that last 15 steps and more, if the noise allows it. Slow steps that are few, or
    that come in a period, and slow steps at the start are no change.
    """
    parts = own if isinstance(own, Mapping) else {OWN: own} if own is not None else {}
    job = job_step(steps) if steps.size else np.empty(0)
    known = np.flatnonzero(job > 0)
    if len(known) < _FEWEST:
        return []
    known = known[warm_up(job[known]) :]
    y, period = without_period(np.log(job[known]), known)
    at = onsets.jumps(y)
    if at and at[0] < WARM_UP and np.median(y[: at[0]]) > np.median(y[at[0] : at[0] + onsets.NEAR]):
        known, y, at = known[at[0] :], y[at[0] :], [each - at[0] for each in at[1:]]
    turn = period if period <= _SHORT_PERIOD else 1
    least = {name: _least(values)[None, :] for name, values in (waiting or {}).items()}
    series = _Series(job, known, y, parts, least, core_wait, turn)
    spots = series.with_own(at)
    places = onsets.neighbours([spot.at for spot in spots], len(y))
    return [series.change(*each, len(steps)) for each in zip(spots, places, strict=True)]


def _least(values: F64) -> F64:
    """The least of the ranks in each step, NaN where none is known."""
    least = np.where(np.isnan(values), np.inf, values).min(axis=0)
    return np.where(np.isfinite(least), least, np.nan)


class _Series(NamedTuple):
    """job: durations of all steps. known: the steps that count. y: their log durations. least: of the phases in which
    ranks wait, (1, steps). The rest: of `changes`. turn: steps whose mean is a level, as many as a short period has."""

    job: F64
    known: Ints
    y: F64
    parts: Mapping[str, F64]
    least: Mapping[str, F64]
    core_wait: F64 | None
    turn: int

    def with_own(self, at: list[int]) -> list[Spot]:
        """The jumps of the job's steps, and those of own times that make the job's steps longer or shorter."""
        level = float(np.median(self.job[self.known]))
        chosen = []
        for where in onsets.neighbours(at, len(self.y)):
            before, after = self.medians(where)
            chosen.append(Spot(where[1], after - before))
        own = [*own_jumps(self.parts, self.known, level), *own_jumps(self.least, self.known, level)]
        for spot in sorted(own, key=lambda spot: -abs(spot.jump)):
            near = [other for other in chosen if abs(spot.at - other.at) < onsets.SHORTEST]
            if not near and self._counts(spot, [other.at for other in chosen]):
                chosen.append(spot)
        return sorted(chosen)

    def _counts(self, spot: Spot, chosen: list[int]) -> bool:
        """Whether the others waited for the ranks whose own time jumped, and no missing core explains the jump."""
        ends = [0, *sorted(chosen), len(self.y)]
        begin, end = max(x for x in ends if x <= spot.at), min(x for x in ends if x > spot.at)
        before, after = self.sides((begin, spot.at, end))
        if min(len(before), len(after)) < onsets.SHORTEST:
            return False
        if spot.part in self.least:
            return not self._explained(self.least[spot.part], None, (before, after), spot.jump)
        who = culprits(
            self.parts, (before, after), self.turn, abs(spot.jump) * _SHARED, float(np.sign(spot.jump))
        )
        ranks = np.array(who.ranks, np.intp)
        if not len(ranks) or self._gain(ranks, after if spot.jump > 0 else before, abs(spot.jump)) < _SHARED:
            return False
        return not self._explained(self.parts[who.part][ranks], ranks, (before, after), spot.jump)

    def _explained(self, own: F64, ranks: Ints | None, sides: tuple[Ints, Ints], jump: float) -> bool:
        """Whether waiting for a core may be all of a jump of own time: the shortest steps then stay as they were, and
        these ranks (None: all) waited longer than the others."""
        if self.core_wait is None or np.isnan(self.core_wait).all():
            return False
        low, high = (own[:, side] for side in (sides if jump > 0 else sides[::-1]))
        of_shortest = np.quantile(high, _RARE, axis=1) - np.quantile(low, _RARE, axis=1)
        if np.all(of_shortest > _WAITED * abs(jump)):
            return False
        longer = np.subtract(*(np.nanmedian(self.core_wait[:, side], axis=1) for side in reversed(sides)))
        all_ranks = np.arange(len(longer))
        rows = all_ranks if ranks is None else ranks
        others = np.setdiff1d(all_ranks, rows)
        beside = float(longer[others].mean()) if len(others) else 0.0
        return bool((float(longer[rows].mean()) - beside) / jump >= _WAITED)

    def _gain(self, ranks: Ints, steps: Ints, jump: float) -> float:
        """By how much steps would be shorter if the own time of these ranks was shorter by the jump, over the jump."""
        own = np.asarray(sum(part[:, steps] for part in self.parts.values()))
        own = np.nan_to_num(own)
        without = own.copy()
        without[ranks] -= jump
        return float(np.median(own.max(axis=0) - without.max(axis=0))) / jump

    def medians(self, where: tuple[int, int, int]) -> tuple[float, float]:
        """The job's step before and after a jump."""
        before, after = (float(np.median(in_turns(self.job[side], self.turn))) for side in self.sides(where))
        return before, after

    def sides(self, where: tuple[int, int, int]) -> tuple[Ints, Ints]:
        """The steps near a jump, before and after. where: the jump before, this one and the next."""
        begin, here, end = where
        before = self.known[max(begin, here - onsets.NEAR) : here]
        return before, self.known[here : min(end, here + onsets.NEAR)]

    def change(self, spot: Spot, where: tuple[int, int, int], count: int) -> Change:
        """The change at a jump. count: of ranks.

        Where the noise of the job's steps hides it, `after` is what the jump of the own time makes of `before`.
        """
        sides, (before, after) = self.sides(where), self.medians(where)
        if not _SHARED < (after - before) / spot.jump < 1 / _SHARED:
            after = before + spot.jump
        sign = float(np.sign(spot.jump))
        who = culprits(self.parts, sides, self.turn, _COUNTS * abs(after - before), sign)
        onset = Onset(*(int(self.known[place]) for place in self._placed(spot, where, who)))
        lasts = None if where[2] == len(self.y) else int(self.known[where[2]]) - 1
        named = bool(who.ranks) or count == 1
        ranks = who.ranks or tuple(range(count))
        part = "" if who.part == OWN else who.part
        since = int(self.known[where[0]])
        return Change(*onset, before, after, after / before, ranks, named, lasts, part, since)

    def _placed(self, spot: Spot, where: tuple[int, int, int], who: Culprits) -> Onset:
        """The step of a change, by the own time of the ranks that changed, else by the part that did, else by all."""
        begin, here, end = where
        first, of_job = onsets.likelihoods(self.y, here, begin, end)
        if not who.ranks and spot.part not in self.least:
            return onsets.placed(first, of_job)
        rows = self.parts[who.part][np.array(who.ranks)] if who.ranks else self.least[spot.part]
        own = rows[:, self.known].mean(axis=0) / float(np.median(self.job[self.known]))
        if np.isnan(own).any():
            return onsets.placed(first, of_job)
        likelihood = onsets.likelihoods(own, here, begin, end)[1] + onsets.by_values(own, here, begin, end)[1]
        return onsets.placed(first, likelihood / 2)
