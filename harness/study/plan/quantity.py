"""A number of a plan: its name, which ends with its unit, its value or range, its formula and its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number. value: for a range its geometric mean. formula: what was computed; source: where that is from."""

    name: str
    label: str
    value: float
    unit: str
    formula: str = ""
    source: str = ""
    low: float | None = None
    high: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that it has."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


def ranged(
    name: str, label: str, span: tuple[float, float], unit: str, *, formula: str = "", source: str = ""
) -> Quantity:
    """A number of which a range is known, from the lower end to the higher."""
    low, high = span
    return Quantity(name, label, sqrt(low * high), unit, formula, source, low, high)


@dataclass(frozen=True, slots=True)
class Section:
    """Numbers of one subject. notes: sentences below them: what is not known, and why."""

    title: str
    rows: list[Quantity]
    notes: list[str]
