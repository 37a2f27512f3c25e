"""Pass, fail or cannot tell, from what the health check measured: who is slower than its peers or than the nominal
links allow. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal

# Slower than the median of its peers by more: GPUs of one kind differ by a few per cent, processes that share a CPU
# by much more.
LIMIT = {"cuda": 0.15, "cpu": 0.30}
# Of what the nominal links allow; a ring of NCCL reaches three quarters and more with large messages.
LEAST_OF_NOMINAL = 0.5
CLEARLY = (
    1.5  # times the usual spread: at 1.0, noise alone accused one of 512 ranks in up to 13 checks of 100
)
SMALL_RING = 4  # up to so many pairs, a slow node is in half of them or more


@dataclass(frozen=True)
class Slow:
    """A label of a probe that fails, and what it is compared with: `value` and `other` in the probe's unit."""

    probe: Mapping[str, Any]
    label: str
    value: float
    other: float
    against: Literal["others", "links"]

    @property
    def is_pair(self) -> bool:
        """Whether the label names two places."""
        return str(self.probe["by"]).endswith("pair")

    def text(self, whose: str = "") -> str:
        """As `GEMM 201 TFLOP/s (the others 262)`. whose: as ` of rank 5`, after the probe's name."""
        told = "the others" if self.against == "others" else "the site's links allow"
        return f"{self.probe['name']}{whose} {number(self.value)} {self.probe['unit']} ({told} {number(self.other)})"


def number(value: float) -> str:
    """Three digits that count, and no power of ten: 0.53, 26.1, 1520."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


@dataclass(frozen=True)
class Judged:
    """One probe: what is slow, and how much its repetitions spread where that is too much to see anything slow."""

    slow: list[Slow]
    unsteady: float | None = None


def judge_probe(probe: Mapping[str, Any], limit: float) -> Judged:
    """A label is slow when, against its peers in the same round, its median is below by more than `limit` and by more
    than the repetitions usually spread, and three quarters of the rounds agree."""
    values: Mapping[str, Sequence[float]] = probe["values"]
    nominal = list(_below_nominal(probe))
    if len(values) < 2 or (probe["bound"] is None and probe["by"] == "job"):
        return Judged(nominal)
    ratios = {label: _ratios(label, values, _reference(probe)) for label in values}
    spreads = {label: _quartiles(each) for label, each in ratios.items()}
    noise = median(high - low for low, high in spreads.values())
    slow = [
        Slow(probe, label, median(values[label]), median(_peers(label, values)), "others")
        for label, each in ratios.items()
        if 1 - median(each) > max(limit, CLEARLY * noise) and spreads[label][1] < 1 - limit / 2
    ]
    named = {each.label for each in slow}
    found = [*slow, *(each for each in nominal if each.label not in named)]
    return Judged(found, noise if noise > limit and not found else None)


def _reference(probe: Mapping[str, Any]) -> str:
    pairs = str(probe["by"]).endswith("pair")
    return "best" if pairs and len(probe["values"]) <= SMALL_RING else "median"


def _ratios(label: str, values: Mapping[str, Sequence[float]], reference: str) -> list[float]:
    """Of each round, this label's rate over that of its peers."""
    others = [row for name, row in values.items() if name != label]
    usual = max if reference == "best" else median
    return [mine / usual(row) for mine, *row in zip(values[label], *others, strict=True)]


def _peers(label: str, values: Mapping[str, Sequence[float]]) -> list[float]:
    return [median(row) for name, row in values.items() if name != label]


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _below_nominal(probe: Mapping[str, Any]) -> Iterator[Slow]:
    bound = probe["bound"]
    for label, row in probe["values"].items():
        if bound is not None and median(row) < LEAST_OF_NOMINAL * bound:
            yield Slow(probe, label, median(row), bound, "links")
