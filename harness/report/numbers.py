"""Numbers as people read them: durations, amounts, shares, kernels' names. Knows no summary."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

_ARGUMENTS = re.compile(r"\((?!anonymous|int\)|bool\)|unsigned|cudnn)")  # not casts in template arguments


def duration(ns: float | None) -> str:
    """Nanoseconds in the unit that leaves one to three digits before the point.

    >>> duration(532), duration(1_234_000), duration(None)
    ('532 ns', '1.23 ms', '–')
    """
    if ns is None:
        return "–"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{_three_digits(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def _three_digits(value: float) -> str:
    return f"{value:,.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def amount(count: float | None, unit: str = "B") -> str:
    """A number with a decimal prefix, as GB are counted in bandwidths.

    >>> amount(16_777_216), amount(None), amount(12_500, "tokens/s")
    ('16.8 MB', '–', '12.5 ktokens/s')
    """
    if count is None:
        return "–"
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{_three_digits(count / size)} {prefix}{unit}"
    return f"{count:.3g} {unit}"


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal.

    >>> percent(0.0312), percent(None)
    ('3.1 %', '–')
    """
    return "–" if share is None else f"{100 * share:.1f} %"


def rate(value: float | None) -> str:
    """A bare number with three digits, never in powers of ten.

    >>> rate(0.00234), rate(1071.4), rate(0.0000123), rate(None)
    ('0.00234', '1,071', '0.0000123', '–')
    """
    if value is None:
        return "–"
    if 0 < abs(value) < 1e-4:
        return format(Decimal(f"{value:.3g}"), "f")
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def of(part: float | None, whole: float) -> str:
    """A part as a percentage of a whole; a dash when either is not known."""
    return "–" if part is None or not whole else percent(part / whole)


_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    (r"_ns$", duration),
    (r"_ns_per_token$", lambda ns: f"{duration(ns)} a token"),
    (r"_bytes$|^bytes_", amount),
    (r"_share(_|$)|_fraction$|bubble$|^mfu$", percent),
    (r"^tokens_per_s(_per_rank)?$", lambda value: amount(value, "tokens/s")),
    (r"_joules$", lambda value: amount(value, "J")),
)


def named(fact: str, value: float) -> str:
    """A fact of a run with the unit that its name tells (the names are those of analysis/facts.py).

    >>> named("a.step_ns", 3.064e7), named("b.data_loading_share", 0.28), named("b.all_gather_bytes", 189081088)
    ('30.6 ms', '28.0 %', '189 MB')
    >>> named("a.all_reduce_count", 17.0), named("a.tokens_per_s_per_rank", 21_400)
    ('17', '21.4 ktokens/s')
    """
    name = fact.rpartition(".")[2]
    return next((write(value) for pattern, write in _UNITS if re.search(pattern, name)), rate(value))


def short(name: str, width: int = 60) -> str:
    """A kernel's name without return type and arguments; the middle of long ones left out."""
    return middle(_ARGUMENTS.split(name.removeprefix("void "), 1)[0] or name, width)


def cut(text: str, width: int) -> str:
    """A text that fits: the end of a long one left out.

    >>> cut("0123456789", 5)
    '0123…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def middle(name: str, width: int = 60) -> str:
    """A name that fits: the middle of a long one left out.

    >>> middle("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 40)
    'enumerate(DataLoade…aLoaderIter.__next__'
    """
    return name if len(name) <= width else f"{name[: width - 21]}…{name[-20:]}"
