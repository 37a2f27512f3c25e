"""Step times of simulated trainings whose ranks wait for each other in backward, with a known change of pace or none.

Noise: heavy tails, autocorrelation, slow drift, slow steps in a period, a slow start, and the machine's own busy times
that all ranks share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
PHASES = {"data": 0.08, "forward": 0.27, "backward": 0.5, "optimizer": 0.12}  # of a step
STEP_NS = 50e6
LONGEST_WARM_UP = 6  # steps


@dataclass(frozen=True)
class Noise:
    """sigma: of the log durations. persistence: lag-1 autocorrelation. tails: degrees of freedom of Student's t.
    shared: of the variance, that all ranks have in common. period: each such step is `peak` times as long, from
    `turn` on; 0: none. drift: of the duration, from the first step to the last. warm_up: slow steps at the start."""

    sigma: float
    persistence: float
    tails: float
    shared: float
    period: int
    peak: float
    turn: int
    drift: float
    warm_up: int


@dataclass(frozen=True)
class Planted:
    """From `step` on, a phase of `rank` (None: of all) is longer by `size` of a step, to `until` (None: to the end)."""

    step: int
    size: float
    phase: str
    rank: int | None
    until: int | None = None


@dataclass(frozen=True)
class Series:
    """step: (ranks, steps), nanoseconds; phases: the same of each phase, waiting included; own: without waiting."""

    step: F64
    phases: Mapping[str, F64]
    own: F64


def drawn_noise(dice: np.random.Generator) -> Noise:
    """Of a random training: from one on machines of its own to one on a machine that others use, too."""
    return Noise(
        sigma=float(np.exp(dice.uniform(np.log(0.005), np.log(0.06)))),
        persistence=float(dice.choice([0, 0.3, 0.6, 0.9])),
        tails=float(dice.choice([2.5, 4, 30])),
        shared=float(dice.uniform(0, 1)),
        period=int(dice.choice([0, 0, 2, 4, 8, 20, 50, 100])),
        peak=float(dice.uniform(1.2, 6)),
        turn=int(dice.integers(0, 100)),
        drift=float(dice.uniform(-0.04, 0.04)),
        warm_up=int(dice.integers(0, LONGEST_WARM_UP + 1)),
    )


def simulated(ranks: int, steps: int, noise: Noise, planted: Planted | None, dice: np.random.Generator) -> Series:
    """One training. A step of a rank ends with its optimizer; backward ends on all ranks at once."""
    factor = _factors(ranks, steps, noise, dice)
    own = {name: share * STEP_NS * factor * np.exp(0.02 * dice.standard_normal((ranks, steps)))
           for name, share in PHASES.items()}  # fmt: skip
    if planted is not None:
        rows = slice(None) if planted.rank is None else planted.rank
        own[planted.phase][rows, planted.step : planted.until] += planted.size * STEP_NS
    begin, step, waited = np.zeros(ranks), np.empty((ranks, steps)), np.empty((ranks, steps))
    for number in range(steps):
        ready = begin + own["data"][:, number] + own["forward"][:, number] + own["backward"][:, number]
        waited[:, number] = ready.max() - ready + 0.03 * STEP_NS
        end = ready + waited[:, number] + own["optimizer"][:, number]
        step[:, number], begin = end - begin, end
    return Series(step, {**own, "backward": own["backward"] + waited}, step - waited)


def _factors(ranks: int, steps: int, noise: Noise, dice: np.random.Generator) -> F64:
    """What noise does to the durations: (ranks, steps)."""
    shared, own = _correlated(1, steps, noise, dice), _correlated(ranks, steps, noise, dice)
    log = noise.sigma * (np.sqrt(noise.shared) * shared + np.sqrt(1 - noise.shared) * own)
    log = log + noise.drift * np.linspace(0, 1, steps)
    log[:, : noise.warm_up] += np.linspace(1.5, 0.3, noise.warm_up)
    if noise.period:
        log[:, noise.turn % noise.period :: noise.period] += np.log(noise.peak)
    return np.asarray(np.exp(log))


def _correlated(rows: int, steps: int, noise: Noise, dice: np.random.Generator) -> F64:
    """Autocorrelated noise with heavy tails, mostly to the slow side, with a standard deviation of about 1."""
    new = dice.standard_t(noise.tails, (rows, steps)) / np.sqrt(noise.tails / (noise.tails - 2))
    new = np.where(new < -2, -2, new) * np.sqrt(1 - noise.persistence**2)
    series = np.empty((rows, steps))
    series[:, 0] = new[:, 0]
    for number in range(1, steps):
        series[:, number] = noise.persistence * series[:, number - 1] + new[:, number]
    return series
