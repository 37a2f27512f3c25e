"""Decimal text to integer nanoseconds, without a float in between.

Kineto writes microseconds with three decimals on a base near 4e12 or 1.7e15: too many digits for float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec
import numpy as np

from harness.traces.trace import I64

_DOT, _COMMA = b".", b","
_MOST_NS = 1 << 62  # the year 2116; twice as much is no number of 64 bits
_MOST_DIGITS = 16  # of microseconds before the point


def nanoseconds(microseconds: Sequence[msgspec.Raw]) -> I64:
    """Microseconds as the text of JSON numbers to integer nanoseconds.

    Raises:
        ValueError: a text is not a number, or one beyond 2^62 ns.
    """
    if not microseconds:
        return np.empty(0, np.int64)
    text = _COMMA.join(microseconds)
    dots = text.count(_DOT)
    if dots == 0 and _plain(text):
        return _integers(text, len(microseconds), _MOST_NS // 1000) * 1000
    if dots == len(microseconds) and _three_decimals_each(text) and _plain(text):
        return _integers(text.replace(_DOT, b""), len(microseconds), _MOST_NS)
    return np.array([_nanoseconds_of(bytes(number)) for number in microseconds], np.int64)


def _three_decimals_each(text: bytes) -> bool:
    characters = np.frombuffer(text + _COMMA, np.uint8)
    dots, commas = np.flatnonzero(characters == ord(".")), np.flatnonzero(characters == ord(","))
    return bool((commas - dots == 4).all())


def _plain(text: bytes) -> bool:
    return not (b"e" in text or b"E" in text or b'"' in text or b"n" in text)


def _integers(text: bytes, count: int, most: int) -> I64:
    values = np.fromstring(text, np.int64, sep=",")  # what has more than 64 bits becomes the largest number
    if len(values) != count:
        raise ValueError("a time stamp is not a number")
    if values.min() < -most or values.max() > most:
        raise ValueError("a time stamp is out of range")
    return values


def _nanoseconds_of(number: bytes) -> int:
    whole, _, fraction = number.strip(b'"').partition(_DOT)
    if fraction.isdigit() and whole.isdigit() and len(fraction) <= 3 and len(whole) < _MOST_DIGITS:
        return int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    try:
        value = Decimal(number.strip(b'"').decode())
    except ArithmeticError as error:
        raise ValueError("a time stamp is not a number") from error
    # The size first: 1e999999999 as an integer would fill the memory.
    if not value.is_finite() or value.adjusted() >= _MOST_DIGITS or abs(value) > _MOST_NS // 1000:
        raise ValueError("a time stamp is out of range")
    return int((value * 1000).to_integral_value())
