"""Texts that others wrote, made safe to show: they steer no terminal, hide nothing and stay of bounded length.

Standard library only. HTML, JSON and CSV have escapes of their own besides.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, TextIO

MOST_NAME = 4096  # characters of a name in a trace: the longest real ones, of C++ templates, have some 3,000
_KEPT_END = 200
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # and other orders to a terminal
_ESCAPED = re.compile(r"\\[bfnrtu]")  # in JSON, a character that may not be printable
_BLANKS = "\t\n\v\f\r\u0085\u2028\u2029"
# They reorder or hide what stands around them. U+200C and U+200D are letters' own business in many scripts.
_HIDDEN = (
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2061\u2062\u2063\u2064"
    "\u2066\u2067\u2068\u2069\u206a\u206b\u206c\u206d\u206e\u206f\ufeff\ufff9\ufffa\ufffb"
)
_UNSHOWN: dict[int, str | None] = {
    **dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), None),
    **dict.fromkeys(map(ord, _BLANKS), " "),
    **{ord(character): f"<U+{ord(character):04X}>" for character in _HIDDEN},
    **{code: f"<U+{code:X}>" for code in range(0xE0000, 0xE0080)},  # invisible copies of ASCII
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # halves of a character, which no file can hold
}
_UNSHOWN_IN_LINES = {code: shown for code, shown in _UNSHOWN.items() if chr(code) not in "\t\n"}
_ANY_IN_LINES = frozenset(map(chr, _UNSHOWN_IN_LINES))
# More than four marks on one character cover the lines above and below it.
_MARK = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
# Controls, marks of direction, no characters, line ends.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_FLOOD = re.compile(f"({_MARK}{{4}}){_MARK}+")
NOT_UNICODE = "name that is not UTF-8 text, which no report can hold: rename it"


def printable(text: str) -> str:
    """The text on one line, without control characters; what would hide or reorder others shows its number.

    >>> printable("\\x1b[31mgemm\\n"), printable("a\\u202eb")
    ('[31mgemm ', 'a<U+202E>b')
    """
    if text.isprintable():
        return text if text.isascii() else _FLOOD.sub(r"\1", text)
    return _FLOOD.sub(r"\1", text.translate(_UNSHOWN))


def printable_lines(text: str) -> str:
    """As `printable`, and line ends and tabs stay.

    >>> printable_lines("one\\r\\n\\ttwo\\x07")
    'one \\n\\ttwo'
    """
    return _FLOOD.sub(r"\1", text.translate(_UNSHOWN_IN_LINES) if _steers(text) else text)


def _steers(text: str) -> bool:
    """Whether `printable_lines` has anything to do; a set of characters is found faster than any of them."""
    return not text.isprintable() and not _ANY_IN_LINES.isdisjoint(set(text))


def printable_name(text: str) -> str:
    """As `printable`; of a longer name than any real one its two ends, apart from others' by a checksum.

    >>> printable_name("k" * 1_000_000)[-240:-195]
    'kkkkkkkk…(1000000 characters, 42c81127)…kkkkk'
    """
    shown = printable(text)
    if len(shown) <= MOST_NAME:
        return shown
    from hashlib import blake2b

    checksum = blake2b(shown.encode(), digest_size=4).hexdigest()
    middle = f"…({len(shown)} characters, {checksum})…"
    return shown[: MOST_NAME - _KEPT_END - len(middle)] + middle + shown[-_KEPT_END:]


def escaped(text: str) -> str:
    r"""The text on one line, with the escape of each character that cannot be seen: nothing is left out.

    >>> escaped("ls\n\x1b[2K rm -rf ~ \u202e")
    'ls\\n\\x1b[2K rm -rf ~ \\u202e'
    """
    return "".join(
        each.encode("unicode_escape").decode("ascii") if unicodedata.category(each) in _UNSEEN else each
        for each in text
    )


def is_unicode(name: str) -> bool:
    """Whether a file can hold the name. Python keeps the other bytes of a file's name as halves of characters.

    >>> is_unicode("café"), is_unicode("caf\\udce9")
    (True, False)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable_value(value: Any) -> Any:
    """A value of JSON with `printable` keys and texts."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): printable_value(inner) for key, inner in value.items()}
    return [printable_value(inner) for inner in value] if isinstance(value, list) else value


def printable_json(text: str) -> str:
    """A JSON text with `printable` keys and texts in it. Raises ValueError: it is not JSON."""
    if _ESCAPED.search(text) or _steers(text) or _FLOOD.search(text):
        return json.dumps(printable_value(json.loads(text)))
    return text


def shown_on(stream: TextIO, text: str) -> str:
    """As `printable_lines`, in characters that the stream has."""
    shown = printable_lines(text)
    if shown.isascii():
        return shown
    encoding = stream.encoding or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


class GuardedStream:
    """A stream of text that shows what is written to it as `printable_lines`, in characters that it has.

    What steers the terminal on purpose (a line of progress, a log's colours) is written to its `unguarded` stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        """Write the text; returns its length, as every stream does."""
        self.unguarded.write(shown_on(self.unguarded, text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for what steers the terminal on purpose."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream
