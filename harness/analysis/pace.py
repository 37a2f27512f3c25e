"""Changes of a run's pace, and which ranks' own time changed, without the time in which they waited for others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis import onsets
from harness.analysis.onsets import WARM_UP, Onset, floor, in_turns, job_step, warm_up, without_period

F64 = NDArray[np.float64]
Ints = NDArray[np.intp]
WAITING = ("backward",)  # DDP: the phase in which a rank waits for the others' gradients
REST = "other"  # the part of a step in no phase
_MOST_LACKING = 0.25  # of the steps
_NEAREST = 9  # steps
_LEAST = 0.05  # of the job's step, by which a rank's own time must change
_BESIDE = 0.5  # of the change of the rank that changed most
_CERTAIN = 4.0  # standard errors
_ALL = 0.9  # of the ranks
_SERIES, _STEPS = 48, 12_000  # most series that are searched, and most steps of them together
_APART, _LESS = 5, 0.5  # steps; of the differences between steps so far apart
_BLOCKS, _LOOKS = 8, 512  # parts of a series, and steps, by which a series is looked at first
OWN = "own"  # the part that is all of a rank's own time
_FEWEST = 40  # steps, to speak of a change
_SHORT_PERIOD = 4  # steps, of which an unusual one is not rare
_COUNTS = 0.35  # of the job's change, by which a rank's own time must have changed
_SHARED = 0.5  # of a jump of own time, by which the job's step must have changed too, or may have within its noise
_RARE = 0.05  # of the steps are shorter than those in which no rank waited for a core
_WAITED = 0.5  # of a jump of own time, that waiting for a core explains


def own_parts(
    step: F64,
    phases: Mapping[str, F64],
    waiting: Collection[str] = WAITING,
    *,
    own_time: F64 | None = None,
    on_host: bool = True,
) -> dict[str, F64]:
    """The parts of each step in which a rank did not wait for other ranks, as far as phases tell.

    step, phases: (ranks, steps), NaN where not known. phases: "data", "forward", "backward", "optimizer". waiting: the
    phases in which collectives run: in them computing cannot be told from waiting, so they are left out entirely.
    own: (ranks, steps), the time without waiting, by the starts of collectives: with it backward has a part, if ranks
    wait in no other phase and it is known in most steps. on_host: the steps are computed by the host; on a GPU the time
    in no phase is waiting for the device, and with it for other ranks, so it is left out too.
    """
    parts = {name: values for name, values in phases.items() if name not in waiting}
    if not on_host:
        return parts
    parts[REST] = step - sum(np.nan_to_num(values) for values in phases.values())
    if own_time is not None and tuple(waiting) == WAITING:
        inside = _before_waiting(step, phases[WAITING[0]], own_time)
        parts |= {} if inside is None else {WAITING[0]: inside}
    return parts


def _before_waiting(step: F64, backward: F64, own_time: F64) -> F64 | None:
    """The part of backward before the wait for other ranks, if each rank's own time is known in most of its steps.

    step, backward, own: (ranks, steps), NaN where not known. A step whose own time is not known, as the last ones of a
    training, gets the median of the nearest ones that are.
    """
    found = np.clip(backward - (step - own_time), 0, None)
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


class Spot(NamedTuple):
    """A jump: an index of the known steps, by how much, and the part that jumped (empty: the job's step)."""

    at: int
    jump: float
    part: str = ""


def own_jumps(parts: Mapping[str, F64], known: Ints, level: float) -> list[Spot]:
    """The jumps of all ranks' own times, as far as they are a part of the job's step that counts.

    parts: by name, (ranks, steps). known: the steps that count. level: the job's median step.
    """
    found: list[Spot] = []
    for name, rank in _restless(parts, known, level):
        row = parts[name][rank, known] / level
        if np.isnan(row).any():
            continue
        series, _ = without_period(row, known)
        least = floor(series)
        of_row = [*_spots(series), *(_spots(least) if _varies_less(least, series) else ())]
        found += [Spot(spot.at, spot.jump * level, name) for spot in of_row]
    return found


def _varies_less(least: F64, series: F64) -> bool:
    """Whether some steps are longer by chance and the others alike: other programs use the machine."""
    of_least, of_series = (onsets.spread(each[_APART:] - each[:-_APART]) for each in (least, series))
    return of_least < _LESS * of_series


def _spots(series: F64) -> list[Spot]:
    """The jumps of one series, without a warm-up's end."""
    found = []
    for begin, here, end in onsets.neighbours(onsets.jumps(series), len(series)):
        first, last = max(begin, here - onsets.NEAR), min(end, here + onsets.NEAR)
        jump = float(np.median(series[here:last]) - np.median(series[first:here]))
        if jump > 0 or here >= WARM_UP:
            found.append(Spot(here, jump))
    return found


def _restless(parts: Mapping[str, F64], known: Ints, level: float) -> list[tuple[str, int]]:
    """The own times whose level changes, by a short look: part and row; those that change most if they are many."""
    few = known[:: max(len(known) // _LOOKS, 1)]
    count = len(few) // _BLOCKS
    found = []
    for name, part in parts.items():
        look = part[:, few[: count * _BLOCKS]].reshape(len(part), _BLOCKS, count)
        levels = np.median(look, axis=2)
        between = np.ptp(levels, axis=1) / level
        found += [(float(between[row]), name, int(row)) for row in np.flatnonzero(between > _LEAST / 2)]
    most = min(_SERIES, max(_STEPS // len(known), 2))
    return [(name, row) for _, name, row in sorted(found, reverse=True)[:most]]


class Culprits(NamedTuple):
    """Ranks whose own time changed, and the part in which it did; no ranks: nobody can be named."""

    ranks: tuple[int, ...]
    part: str


def culprits(parts: Mapping[str, F64], sides: tuple[Ints, Ints], turn: int, least: float, sign: float) -> Culprits:
    """The ranks whose own time changed.

    parts: by name, (ranks, steps). sides: the steps before and after. turn: of `in_turns`. least: the smallest change
    that counts. sign: 1 if steps became slower, -1 if faster.
    """
    grew = {name: _grew(part, sides, turn, sign) for name, part in parts.items() if part.size}
    best = max(grew, key=lambda name: float(grew[name].max()), default=None)
    if best is None or grew[best].max() < least:
        return Culprits((), "")
    most = np.max(list(grew.values()), axis=0)
    known = np.count_nonzero(np.any([~np.isnan(part[:, sides[1]]).any(axis=1) for part in parts.values()], axis=0))
    ranks = np.flatnonzero(most >= max(least, _BESIDE * float(most.max())))
    everyone = len(ranks) >= _ALL * known
    return Culprits(tuple(range(len(most))) if everyone else tuple(map(int, ranks)), best)


def _grew(own_time: F64, sides: tuple[Ints, Ints], turn: int, sign: float) -> F64:
    """By how much the median of each rank changed; -inf where that is not certain."""
    grew = np.full(len(own_time), -np.inf)
    before, after = (in_turns(own_time[:, side], turn) for side in sides)
    there = ~(np.isnan(before).any(axis=1) | np.isnan(after).any(axis=1))
    if there.any() and before.shape[1] and after.shape[1]:
        before, after = before[there], after[there]
        low, high = np.median(before, axis=1), np.median(after, axis=1)
        noise = np.hstack([before - low[:, None], after - high[:, None]])
        error = _rows_spread(noise) * 2.5 * np.sqrt(1 / before.shape[1] + 1 / after.shape[1])
        moved = sign * (high - low)
        grew[there] = np.where(moved > _CERTAIN * error, moved, -np.inf)
    return grew


def _rows_spread(noise: F64) -> F64:
    middle = np.median(noise, axis=1, keepdims=True)
    return np.asarray(1.4826 * np.median(np.abs(noise - middle), axis=1))


class DetectedChange(NamedTuple):
    """One change of pace. Durations in the unit of the input.

    step: the first step of the new pace; low, high: its 95 % interval; of a gradual change, the first step after the
    first quarter, and the first step of the last quarter. before, after: median durations of the job's step; ratio:
    after / before. ranks: those whose own time changed; all ranks if all changed, or if nobody can be
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
    gradual: bool = False


def changes(
    steps: F64,
    own_time: F64 | Mapping[str, F64] | None = None,
    core_wait: F64 | None = None,
    waiting: Mapping[str, F64] | None = None,
) -> list[DetectedChange]:
    """Each change of pace, in the order of steps.

    steps: (ranks, steps), durations; NaN where not known. own: the same without waiting for other ranks, as a whole or
    its parts by name (`own_parts`): a change of a small part is seen in noise in which that of a step is not; NaN or
    None: not known. core_wait: the time in which a rank's thread was ready and had no core; what it explains is no
    change of a rank's own time. waiting: by name, the phases in which ranks wait; the least of the ranks is the time
    of the one that came last, which did not wait, so it tells of a change but not of a rank.

    Found are changes by 8 % and more that last 15 steps and more, if the noise allows it. Slow steps that are few, or
    that come in a period, and slow steps at the start are no change. Steps that become longer little by little, from
    quarter to quarter, by 15 % and more, are one gradual change.
    """
    parts = own_time if isinstance(own_time, Mapping) else {OWN: own_time} if own_time is not None else {}
    job = job_step(steps) if steps.size else np.empty(0)
    known = np.flatnonzero(job > 0)
    if not len(known):
        return []
    known = known[warm_up(job[known]) :]
    y, period = without_period(np.log(job[known]), known)
    at = onsets.jumps(y) if len(known) >= _FEWEST else []
    if at and at[0] < WARM_UP and np.median(y[: at[0]]) > np.median(y[at[0] : at[0] + onsets.NEAR]):
        known, y, at = known[at[0] :], y[at[0] :], [each - at[0] for each in at[1:]]
    turn = period if period <= _SHORT_PERIOD else 1
    least = {name: _least(values)[None, :] for name, values in (waiting or {}).items()}
    series = _Series(job, known, y, parts, least, core_wait, turn)
    if onsets.grows(y):
        return series.growth(len(steps))
    spots = series.with_own(at) if len(known) >= _FEWEST else []
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
        who = culprits(self.parts, (before, after), self.turn, abs(spot.jump) * _SHARED, float(np.sign(spot.jump)))
        ranks = np.array(who.ranks, np.intp)
        if not len(ranks) or self._gain(ranks, after if spot.jump > 0 else before, abs(spot.jump)) < _SHARED:
            return False
        return not self._explained(self.parts[who.part][ranks], ranks, (before, after), spot.jump)

    def _explained(self, own_time: F64, ranks: Ints | None, sides: tuple[Ints, Ints], jump: float) -> bool:
        """Whether waiting for a core may be all of a jump of own time: the shortest steps then stay as they were, and
        these ranks (None: all) waited longer than the others."""
        if self.core_wait is None or np.isnan(self.core_wait).all():
            return False
        low, high = (own_time[:, side] for side in (sides if jump > 0 else sides[::-1]))
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

    def change(self, spot: Spot, where: tuple[int, int, int], count: int) -> DetectedChange:
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
        return DetectedChange(*onset, before, after, after / before, ranks, named, lasts, part, since)

    def growth(self, count: int) -> list[DetectedChange]:
        """The change of steps that become longer little by little; none if waiting for a core explains it."""
        quarter = len(self.known) // 4
        sides = self.known[:quarter], self.known[-quarter:]
        before, after = (float(np.median(in_turns(self.job[side], self.turn))) for side in sides)
        who = culprits(self.parts, sides, self.turn, _COUNTS * (after - before), 1.0)
        rows = np.array(who.ranks, np.intp)
        own = self.parts[who.part][rows] if who.ranks else self.job[None, :]
        if self._explained(own, rows if who.ranks else None, sides, after - before):
            return []
        begin, end = int(sides[0][-1]) + 1, int(sides[1][0])
        ranks, named = who.ranks or tuple(range(count)), bool(who.ranks) or count == 1
        part = "" if who.part == OWN else who.part
        since = int(self.known[0])
        return [
            DetectedChange(
                begin, begin, end, before, after, after / before, ranks, named, None, part, since, gradual=True
            )
        ]

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
