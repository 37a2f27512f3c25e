"""Changes of pace: found where they were planted, on the ranks that caused them, and nowhere in steady trainings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.analysis.pace import WAITING, DetectedChange, changes, own_times
from harness.analysis.pace_evidence import CORE_WAIT, PAGE_FAULTS, evidence, grown_phase
from harness.analysis.slowest_rank import Slowest, slowest
from harness.explain.pace import change_sentence, returns, slowest_sentence, worth_telling
from tests.analysis.pace_series import STEP_NS, Noise, Planted, Series, drawn_noise, simulated

F64 = NDArray[np.float64]
QUIET = Noise(sigma=0.02, persistence=0.3, tails=4, shared=0.5, period=0, peak=1, turn=0, drift=0, warm_up=0)


def _dice(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _found(series: Series) -> list[DetectedChange]:
    return changes(series.step, own_times(series.step, series.phases))


def _flat(steps: int = 200, ranks: int = 2, sigma: float = 0.02, seed: int = 0) -> F64:
    return np.asarray(STEP_NS * np.exp(sigma * _dice(seed).standard_normal((ranks, steps))))


@pytest.mark.parametrize("phase", ["data", "forward", "optimizer"])
@pytest.mark.parametrize("size", [0.1, 0.2, 0.6])
def test_the_step_the_rank_and_the_phase_of_a_change_are_found(phase: str, size: float) -> None:
    series = simulated(4, 300, QUIET, Planted(173, size, phase, 2), _dice())
    (change,) = _found(series)
    assert abs(change.step - 173) <= 2
    assert (change.ranks, change.named, change.lasts) == ((2,), True, None)
    assert change.after - change.before == pytest.approx(size * STEP_NS, rel=0.25)
    assert change.ratio == change.after / change.before
    assert grown_phase(change, series.phases) == phase


def test_without_own_times_the_step_is_found_and_no_rank() -> None:
    series = simulated(4, 300, QUIET, Planted(100, 0.2, "data", 1), _dice())
    for own in (None, np.full_like(series.step, np.nan)):
        (change,) = changes(series.step, own)
        assert abs(change.step - 100) <= 2
        assert not change.named


def test_slower_and_faster_again_are_two_changes() -> None:
    slower, faster = _found(simulated(2, 400, QUIET, Planted(150, 0.3, "data", 0, until=190), _dice()))
    assert returns(slower, faster) and " until step 189: " in change_sentence(slower, None)
    assert slower.ratio > 1 > faster.ratio
    assert slower.lasts == faster.step - 1
    assert abs(faster.step - 190) <= 2
    assert faster.lasts is None


def test_steady_trainings_have_no_change() -> None:
    dice = _dice(5)
    for number in range(40):
        series = simulated(1 + number % 4, 150 + 50 * (number % 5), drawn_noise(dice), None, dice)
        assert _found(series) == [], number


@pytest.mark.parametrize(("period", "factor"), [(2, 2.0), (3, 1.5), (8, 3.0), (50, 10.0)])
def test_slow_steps_in_a_period_are_no_change_and_hide_none(period: int, factor: float) -> None:
    steps = _flat(300)
    steps[:, ::period] *= factor
    assert changes(steps) == []
    steps[:, 200:] *= 1.2
    (change,) = changes(steps)
    assert abs(change.step - 200) <= 2
    assert change.ratio == pytest.approx(1.2, abs=0.03)


def _unknown() -> F64:
    steps = _flat(300)
    steps[:, 200:] *= 1.2
    steps[:, 50:80] = np.nan
    steps[0, 100:110] = np.nan
    return steps


def _jump(size: float, noise: float) -> F64:
    steps = _flat(200, 1, noise)
    steps[:, 180:] += size * STEP_NS
    return steps


def _begins(*slow: float) -> F64:
    steps = _flat()
    steps[:, : len(slow)] *= slow
    return steps


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        (_unknown(), 200),
        (np.repeat([[STEP_NS, 1.5 * STEP_NS]] * 2, [60, 40], axis=1), 60),  # without any noise
        (np.full((2, 100), STEP_NS), None),
        # a change is told from 6 per cent and five spreads on
        (_jump(0.04, 0.005), None),
        (_jump(0.1, 0.02), 180),
        (_jump(0.1, 0.1), None),
        (_jump(0.3, 0.05), 180),
        (_jump(0.6, 0.1), 180),
        *((_begins(*slow), None) for slow in ((30.0,), (8.0, 2.0, 1.5), (1.6,) * 14)),
        *((_flat(600) * np.linspace(1, last, 600), None) for last in (0.67, 1.12, 1.5)),  # a slow drift
        *((np.ones(shape), None) for shape in ((0, 0), (2, 0), (2, 10), (1, 59))),  # few steps
        *((STEP_NS * np.array([[9.0, 1.0, 1.0][:count]] * 2), None) for count in (1, 2, 3)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_only_a_new_level_is_a_change(steps: F64, at: int | None) -> None:
    found = changes(steps)
    assert len(found) == (at is not None)
    assert at is None or abs(found[0].step - at) <= 2


@pytest.mark.parametrize(
    ("phase", "rank", "ranks", "named"), [("forward", None, (0, 1, 2, 3), True), ("backward", 1, (0, 1, 2, 3), False)]
)
def test_all_ranks_are_named_if_all_are_slower_and_nobody_in_the_phase_of_waiting(
    phase: str, rank: int | None, ranks: tuple[int, ...], named: bool
) -> None:
    (change,) = _found(simulated(4, 300, QUIET, Planted(100, 0.2, phase, rank), _dice()))
    assert (change.ranks, change.named) == (ranks, named)


def test_the_own_time_leaves_out_what_waits() -> None:
    step = np.array([[10.0]])
    phases = {"data": np.array([[1.0]]), "forward": np.array([[2.0]]), "backward": np.array([[5.0]])}
    assert own_times(step, phases).item() == 5
    assert own_times(step, phases, ("forward", "backward")).item() == 3
    assert own_times(step, phases, on_host=False).item() == 3


def _slower(slow: Any) -> F64:
    """The own times of four ranks, of which the second, or each in turn, is slower in some steps."""
    own = _flat(400, 4)
    own[(1, slow) if isinstance(slow, slice) else slow] *= 1.5
    return own


IN_TURN = (_dice(1).integers(0, 4, 400), np.arange(400))


@pytest.mark.parametrize(
    ("own", "kind", "rank", "share"),
    [
        (_slower(slice(None)), "always", 1, 1.0),
        (_slower(slice(0, 260)), "often", 1, 0.65),
        (_slower(slice(0, None, 10)), "rarely", 1, 0.1),
        (_slower(IN_TURN), "in turns", None, None),
        # ranks that are alike cost nothing
        (_flat(400, 4, 0.005), "never", None, None),
        (_flat(400, 1), "never", None, None),
        (np.full((2, 400), np.nan), "never", None, None),
    ],
)
def test_the_slowest_rank_is_named_with_how_often(own: F64, kind: str, rank: int | None, share: float | None) -> None:
    found = slowest(own, STEP_NS)
    assert (found.kind, found.rank) == (kind, rank)
    assert share is None or found.costs == pytest.approx(0.5 * STEP_NS * share, rel=0.15)


def test_a_note_says_when_who_and_where() -> None:
    series = simulated(4, 300, QUIET, Planted(173, 0.3, "data", 2), _dice())
    own = own_times(series.step, series.phases)
    (change,) = changes(series.step, own)
    sentence, shows = change_sentence(change, grown_phase(change, series.phases)), evidence(change, own, series.phases)
    assert (change.named, change.ranks) == (True, (2,))
    assert re.match(r"Steps take [\d.]+ % more time \(1\.\d\d times as slow\) from step 17", sentence)
    assert sentence.endswith("; on rank 2, in data loading.")
    assert shows.startswith("time without waiting for other ranks, of rank 2: ")
    assert "; of the others " in shows
    always = Slowest("always", 3, 0.97, 6e6)
    assert worth_telling(always, [])
    assert slowest_sentence(always, 50e6) == (
        "Rank 3 is always the slowest: clearly in 97.0 % of the steps. "
        "If it was as fast as the next one, a step would be up to 6.00 ms (12.0 %) shorter."
    )


WAITED = "threads waited 20.0 ms longer per step for a core, which other programs used"
FAULTS = "page faults per step: 10 before, 3040 after, as the C library"


@pytest.mark.parametrize(
    ("phase", "early", "late", "told"),
    [
        (CORE_WAIT, 0, 0.4 * STEP_NS, WAITED),
        (PAGE_FAULTS, 10, 3040, FAULTS),
        (PAGE_FAULTS, 3040, 10, ""),
        (PAGE_FAULTS, 3000, 3300, ""),
    ],
)
def test_a_note_tells_of_waits_for_cores_and_of_page_faults(phase: str, early: float, late: float, told: str) -> None:
    steps = _flat(300)
    steps[:, 200:] *= 1.4
    (change,) = changes(steps)
    shows = evidence(change, None, {phase: np.repeat([[early, late]] * 2, [200, 100], axis=1)})
    assert shows.startswith(told) and bool(shows) is bool(told)


def test_own_time_that_nobody_waits_for_is_no_change() -> None:
    steps = _flat(300)
    own = np.array([0.5, 0.2])[:, None] * steps
    own[1, 150:] += 0.15 * STEP_NS  # the other rank is slower still
    assert changes(steps, own) == []


@pytest.mark.parametrize("rank", [0, 3, None])
def test_the_starts_of_collectives_tell_whose_backward_became_longer(rank: int | None) -> None:
    series = simulated(4, 300, QUIET, Planted(173, 0.2, "backward", rank), _dice())
    series.own[:, -20:] = np.nan  # a training's last steps
    (change,) = changes(series.step, own_times(series.step, series.phases, told=series.own))
    assert abs(change.step - 173) <= 2
    assert (change.ranks, change.named) == (tuple(range(4)) if rank is None else (rank,), True)


def test_own_times_that_are_mostly_unknown_on_one_rank_are_not_used() -> None:
    series = simulated(2, 300, QUIET, None, _dice())
    series.own[1, 200:] = np.nan
    for waiting in (WAITING, ("forward", *WAITING)):
        used = own_times(series.step, series.phases, waiting, told=series.own)
        assert np.array_equal(used, own_times(series.step, series.phases, waiting))
