"""A dash that is no hyphen, or an exercise without -e: each is refused with the corrected line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable

from harness.cli.parser import Words
from harness.common.errors import RequestError
from harness.common.paths import COMMAND

_DASHES = {
    "\u2010": "a typographic hyphen", "\u2011": "a typographic hyphen", "\u2012": "a figure dash",
    "\u2013": "an en dash", "\u2014": "an em dash", "\u2015": "a horizontal bar", "\u2212": "a minus sign",
    "\ufe58": "an em dash", "\ufe63": "a typographic hyphen", "\uff0d": "a typographic hyphen",
}  # fmt: skip
_DASH = f"[{''.join(_DASHES)}]"
_FLAG = re.compile(rf"(?P<before>^|\s)-?{_DASH}[-{_DASH[1:]}*(?P<name>\S*)")


def refuse_mistyped(words: Words) -> None:
    """Raises RequestError, with the corrected line: a flag begins with a dash, or the line with an exercise."""
    argv = words.launcher
    arguments = [_with_hyphens(word) for word in argv]
    rest = [] if words.script is None else ["--", *words.script]
    changed = [pair for pair in zip(argv, arguments, strict=True) if pair[0] != pair[1]]
    if changed:
        wrong, right = changed[0]
        sign = next(sign for sign in wrong if sign in _DASHES)
        raise RequestError(
            f"{wrong}: a flag begins with a hyphen (-), and this is {_DASHES[sign]} ({sign}), as slides and documents "
            f"have it: type {right}. The corrected line:\n  {typed([*arguments, *rest])}"
        )
    if argv and argv[0].isascii() and argv[0].isdigit():
        from harness.experiment.exercises import EXERCISES, listing

        if argv[0] not in map(str, EXERCISES):
            raise RequestError(f"-e/--exercise: there is no exercise {argv[0]!r}; there are {listing()}")
        raise RequestError(f"{argv[0]}: an exercise is chosen with -e. The corrected line:\n  {typed(['-e', *argv])}")


def typed(arguments: Iterable[str]) -> str:
    """The command line with these words after the program's name, to paste."""
    return f"{COMMAND} {shlex.join(arguments)}"


def _with_hyphens(word: str) -> str:
    """The word; a flag that begins with a dash, with hyphens: also each of a launch that is one word, in quotes."""
    is_launch = word.startswith("-") and " " in word
    is_flag = _FLAG.match(word) is not None and not os.path.lexists(word)
    return _FLAG.sub(_hyphens, word) if is_launch or is_flag else word


def _hyphens(match: re.Match[str]) -> str:
    name, equals, value = match["name"].partition("=")
    name = re.sub(_DASH, "-", name)
    is_short = len(name) == 1 or (len(name) > 1 and not name[1].isalpha())  # -e, -n2, a negative number
    return match["before"] + ("-" if is_short else "--") + name + equals + value
