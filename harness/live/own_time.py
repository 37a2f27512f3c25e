"""Which ranks' own time changed, without the time in which they waited for other ranks. Knows arrays only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.live import onsets
from harness.live.series import WARM_UP, floor, in_turns, without_period

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


def own_parts(
    step: F64,
    phases: Mapping[str, F64],
    waiting: Collection[str] = WAITING,
    *,
    own: F64 | None = None,
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
    if own is not None and tuple(waiting) == WAITING:
        inside = _before_waiting(step, phases[WAITING[0]], own)
        parts |= {} if inside is None else {WAITING[0]: inside}
    return parts


def _before_waiting(step: F64, backward: F64, own: F64) -> F64 | None:
    """The part of backward before the wait for other ranks, if each rank's own time is known in most of its steps.

    step, backward, own: (ranks, steps), NaN where not known. A step whose own time is not known, as the last ones of a
    training, gets the median of the nearest ones that are.
    """
    found = np.clip(backward - (step - own), 0, None)
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


def culprits(
    parts: Mapping[str, F64], sides: tuple[Ints, Ints], turn: int, least: float, sign: float
) -> Culprits:
    """The ranks whose own time changed.

    parts: by name, (ranks, steps). sides: the steps before and after. turn: of `in_turns`. least: the smallest change
    that counts. sign: 1 if steps became slower, -1 if faster.
    """
    grew = {name: _grew(part, sides, turn, sign) for name, part in parts.items() if part.size}
    best = max(grew, key=lambda name: float(grew[name].max()), default=None)
    if best is None or grew[best].max() < least:
        return Culprits((), "")
    most = np.max(list(grew.values()), axis=0)
    known = np.count_nonzero(
        np.any([~np.isnan(part[:, sides[1]]).any(axis=1) for part in parts.values()], axis=0)
    )
    ranks = np.flatnonzero(most >= max(least, _BESIDE * float(most.max())))
    everyone = len(ranks) >= _ALL * known
    return Culprits(tuple(range(len(most))) if everyone else tuple(map(int, ranks)), best)


def _grew(own: F64, sides: tuple[Ints, Ints], turn: int, sign: float) -> F64:
    """By how much the median of each rank changed; -inf where that is not certain."""
    grew = np.full(len(own), -np.inf)
    before, after = (in_turns(own[:, side], turn) for side in sides)
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
