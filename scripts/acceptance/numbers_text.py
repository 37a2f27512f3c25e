"""Numbers as a person reads them."""

from __future__ import annotations

from typing import Any


def ms(nanoseconds: float | None) -> str:
    """Milliseconds with four significant digits."""
    return "not known" if nanoseconds is None else f"{nanoseconds / 1e6:.4g} ms"


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "not known" if share is None else f"{100 * share:.1f} %"


def scaled(value: float | None, unit: str) -> str:
    """A number with k, M, G, T before its unit."""
    if value is None:
        return "not known"
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def mean(values: list[float]) -> float | None:
    """The mean; None of an empty list."""
    return sum(values) / len(values) if values else None


def first(items: Any) -> dict[str, Any]:
    """The first of a list of objects, or an empty one."""
    return items[0] if items else {}
