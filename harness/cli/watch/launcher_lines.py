"""Lines that PyTorch and its launcher write about themselves, taken out of a run's output while it streams."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

MOST_LINES = 60  # that are kept
_LONGEST = 1 << 16  # text that is longer and has no end yet is the program's own
_MOST_ATOMS = 40  # by which a line's beginning is told

Pattern = re.Pattern[bytes]

# `_atoms` takes these patterns apart: they have no groups and no `?`. Of a long line, each looks at little.
_RANK = rb"\[rank\d{1,6}\]:"
_TIME = rb"\d{4} \d\d:\d\d:\d\d\.\d{3,9} "
_OF_CPP = _TIME + rb"[\w./-]+\.[chp]+:\d+\] "
_OF_LAUNCHER = _TIME + rb"\d+ torch/distributed/[\w/]+\.py:\d+\]"
_BEFORE_2_3 = rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] torch\.distributed\.[\w.]+: "
_PATH = rb"[^]\s:]{1,300}"
_BARRIER = rb"Error waiting on exit barrier\. "
_STARS = b"*" * 41 + b"\n"
_BANNER_BEGINS = _STARS + b"Setting OMP_NUM_THREADS "
_BANNER = re.compile(rb"\n?%s[^\n]*\n%s" % (re.escape(_BANNER_BEGINS), re.escape(_STARS)))
_ATOM = re.compile(rb"(\\.|\[\^?\]?[^]]*\]|.)(\*|\+|\{(\d+)(?:,(\d+))?\})?", re.DOTALL)


class LineKind(NamedTuple):
    """Lines of one sort. begins: how they begin. after: how the lines below them begin that belong to them; ends: the
    same of the last of these."""

    begins: tuple[bytes, ...]
    after: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()


_KINDS = (
    LineKind((rb"\[[WI]" + _OF_CPP, rb"\[E" + _OF_CPP + rb"[^\n]{0,200}exit barrier")),
    LineKind((b"W" + _OF_LAUNCHER, _BEFORE_2_3 + rb"\[WARNING\]")),
    LineKind((b"E" + _OF_LAUNCHER + b" " + _BARRIER,), (b"E" + _OF_LAUNCHER,)),
    LineKind(
        (_BEFORE_2_3 + rb"\[ERROR\] " + _BARRIER, rb"ERROR:torch\.distributed\.[\w.]+:" + _BARRIER, _BARRIER),
        (_BEFORE_2_3 + rb"\[ERROR\]", rb"Traceback \(most recent call last\):", b"  "),
        (rb"[\w.]+: ",),
    ),
    LineKind(
        (
            rb"Exception raised from [^]\n]{1,999} \(most recent call first\):",
            rb"frame #\d{1,4}: ",
            b"<omitting python frames>",
        ),
        ends=(rb"\n",),
    ),
    LineKind(
        tuple(
            b"/" + _PATH + b"-packages/" + package + b"/" + _PATH + rb"\.py:\d+: " + category + b"Warning: "
            for package in (b"torch", b"accelerate", b"deepspeed")
            for category in (b"User", b"Future", b"Deprecation")
        ),
        ends=(rb"  \S",),
    ),
    LineKind(
        (b"The following values were not passed to `accelerate launch` and had defaults used instead:",), (rb"\t",)
    ),
    LineKind(
        (b"To avoid this warning pass in values for each of the problematic parameters or run `accelerate config`",)
    ),
)


def _atoms(pattern: bytes) -> Iterator[bytes]:
    """The pattern's characters, each once for every time that it must come."""
    for one, repeated, least, most in _ATOM.findall(pattern):
        if repeated == b"+":
            yield from (one, one + b"*")
        elif least:
            yield from [one] * int(least)
            if most:
                yield one + b"{0,%d}" % (int(most) - int(least))
        else:
            yield one + repeated


def _begun(pattern: bytes, rest: bytes = rb"[^\n]*") -> bytes:
    r"""The pattern of a text that may go on as one of the given pattern. rest: of the text after what tells it.

    >>> _begun(rb"W\d{2}")
    b'W(?:\\d(?:\\d(?:[^\\n]*)?)?)?'
    """
    found = rest
    for atom in reversed(list(_atoms(pattern))[:_MOST_ATOMS]):
        found = b"%s(?:%s)?" % (atom, found)
    return found


class Beginnings(NamedTuple):
    """whole: of lines, a group for each kind. begun: of what may become such a line, to the text's end."""

    whole: Pattern
    begun: Pattern


def _beginnings(kinds: Sequence[Sequence[bytes]], where: bytes = b"") -> Beginnings:
    of_kinds = b"|".join(b"(%s)" % b"|".join(each) for each in kinds)
    of_begun = b"|".join(_begun(pattern) for each in kinds for pattern in each)
    rank = b"(?:%s ?)?" % _RANK
    return Beginnings(
        re.compile(b"%s%s(?:%s)" % (where, rank, of_kinds)),
        re.compile(rb"%s(?:%s|%s(?:%s))\Z" % (where, _begun(_RANK, b""), rank, of_begun)),
    )


@cache
def _heads() -> Beginnings:
    """A bar of progress may stand before them, which ends with ] or begins its line anew with \\r."""
    return _beginnings([kind.begins for kind in _KINDS], rb"(?<=[\n\r\]])")


@cache
def _below(kind: LineKind) -> Beginnings | None:
    """Of the lines below one of this kind; the second group is the last of them. None: there are none."""
    return _beginnings([kind.after or (rb"[^\s\S]",), kind.ends or (rb"[^\s\S]",)]) if kind.after or kind.ends else None


class _TextPart(NamedTuple):
    """program_end: until where the text is the program's. end: until where what follows is not, None: it is not known
    yet."""

    program_end: int
    end: int | None


class LauncherLines:
    """The lines that were taken out of one log. count: of them; last: the last MOST_LINES, without their ends."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[bytes] = deque(maxlen=MOST_LINES)
        self._before, self._rest = b"\n", b""
        self._kind: LineKind | None = None  # of the line before, if it was taken out

    def without(self, new: bytes, last: bool = False) -> bytes:
        """The program's own part of the log's next text; `last`: no more text follows."""
        text, at = self._before + self._rest + new, 1
        shown = []
        self._rest = b""
        while at < len(text):
            begins_line = text[at - 1 : at] == b"\n"
            own, end = self._part(text, at, begins_line, last)
            shown.append(text[at:own])
            if end is None:
                self._rest = text[own:]
                break
            if end > own:
                self._keep(text[own:end])
                if own > at or not begins_line:  # what comes next begins a line, as it does in the log
                    shown.append(b"\n")
            at = end
        self._before = text[len(text) - len(self._rest) - 1 :][:1]
        return b"".join(shown)

    def _part(self, text: bytes, at: int, begins_line: bool, last: bool) -> _TextPart:
        found = self._banner(text, at, last) if begins_line else None
        end = text.find(b"\n", at) + 1
        is_whole, end = bool(end) or last, end or len(text)
        found = found or (self._line_below(text, at, end, is_whole) if begins_line else None)
        if found is None:
            head = _heads().whole.search(text, at, end)
            if head and is_whole:
                self._kind = next(kind for kind, group in zip(_KINDS, head.groups(), strict=True) if group is not None)
                return _TextPart(head.start(), end)
            begun = head or (None if is_whole else _heads().begun.search(text, at))
            if begun is None:
                self._kind = None
                return _TextPart(end, end)
            found = _TextPart(begun.start(), None)
        is_too_long = found.end is None and len(text) - found.program_end > _LONGEST
        return _TextPart(end, end) if is_too_long else found

    def _banner(self, text: bytes, at: int, last: bool) -> _TextPart | None:
        """torchrun's lines on the number of threads, between two of stars, where nobody puts a time before them."""
        if found := _BANNER.match(text, at):
            return _TextPart(at, found.end())
        begins = text[at : at + len(_BANNER_BEGINS) + 1].removeprefix(b"\n")[: len(_BANNER_BEGINS)]
        return _TextPart(at, None) if _BANNER_BEGINS.startswith(begins) and not last else None

    def _line_below(self, text: bytes, at: int, end: int, is_whole: bool) -> _TextPart | None:
        below = _below(self._kind) if self._kind else None
        if below is None:
            return None
        found = below.whole.match(text, at, end)
        if found and is_whole:
            self._kind = None if found[2] is not None else self._kind
            return _TextPart(at, end)
        return _TextPart(at, None) if not is_whole and (found or below.begun.match(text, at)) else None

    def _keep(self, text: bytes) -> None:
        lines = [line for line in text.split(b"\n") if line]
        self.count += len(lines)
        self.last.extend(lines)
