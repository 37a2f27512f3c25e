"""Words that people type, as whole numbers. Knows no flag."""

from __future__ import annotations

MOST_DIGITS = 18  # more do not fit into 64 bits, and Python itself reads no number of thousands


def whole_number(word: str) -> int | None:
    """The number ≥ 0 that a word of plain digits is; None for any other word, and for a number beyond 64 bits.

    >>> whole_number("12"), whole_number("-1"), whole_number("１２"), whole_number("9" * 400)
    (12, None, None, None)
    """
    return int(word) if word.isascii() and word.isdigit() and len(word) <= MOST_DIGITS else None
