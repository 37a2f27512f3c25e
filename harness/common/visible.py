"""Text of somebody else on a terminal: what would steer it, or hide or turn around what follows, is written out."""

from __future__ import annotations

import unicodedata

_UNSEEN = (
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Cn",
    "Zl",
    "Zp",
)  # controls, marks of direction, no characters, ends of a line


def visible(text: str) -> str:
    r"""The text in one line, each unseen character as its escape.

    >>> visible("ls\n\x1b[2K rm -rf ~ \u202e")
    'ls\\n\\x1b[2K rm -rf ~ \\u202e'
    """
    return "".join(
        each.encode("unicode_escape").decode("ascii") if unicodedata.category(each) in _UNSEEN else each
        for each in text
    )
