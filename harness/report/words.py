"""The words of configs/words.yaml, and their marks on a page. Knows no other part of a page."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec.yaml
from markupsafe import Markup, escape

from harness.common.display.printable import printable
from harness.common.errors import RequestError
from harness.common.paths import CONFIGS

FILE = CONFIGS / "words.yaml"
Group = Literal["GPU", "Recording", "Links", "Collectives", "Parallelism", "Numbers", "Precision"]
GROUPS: tuple[Group, ...] = get_args(Group)
# A word is not inside a name: not beside a letter, a digit or what joins the parts of a path, a flag or a program.
_EDGES = r"(?<![\w/.-])", r"(?![\w/-]|\.\w)"


class Word(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One word. also: other spellings. link: a page that says more, from docs/."""

    word: str
    group: Group
    meaning: str
    also: tuple[str, ...] = ()
    link: str = ""

    @property
    def id(self) -> str:
        """Its name in an address."""
        return "word-" + re.sub(r"[\W_]+", "-", self.word.lower()).strip("-")

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.word, *self.also)


class _WordsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    words: tuple[Word, ...]


@cache
def load_words(path: Path = FILE) -> tuple[Word, ...]:
    """The words of a file, in its order. Raises RequestError: it is not valid, or gives a spelling twice."""
    try:
        words = msgspec.yaml.decode(path.read_bytes(), type=_WordsFile).words
    except (OSError, msgspec.DecodeError) as error:  # of a wrong field it says which
        raise RequestError(f"{path}: the words cannot be read: {error}") from error
    seen: dict[str, str] = {}
    for word in words:
        for spelling in word.spellings:
            if (other := seen.setdefault(spelling, word.word)) != word.word:
                raise RequestError(f"{path}: {spelling!r} is a spelling of {other!r} and of {word.word!r}")
    return words


def _spelled(spelling: str) -> str:
    """As an expression: capitals alone are found as they are, all else in either case, and with an s at its end."""
    exact = re.escape(spelling)
    return exact if spelling.isupper() else f"(?i:{exact}s?)"


class WordFinder:
    def __init__(self, words: tuple[Word, ...]) -> None:
        self.by_spelling = {spelling.lower(): word for word in words for spelling in word.spellings}
        longest_first = sorted((s for w in words for s in w.spellings), key=len, reverse=True)
        before, after = _EDGES
        self.pattern = re.compile(f"{before}({'|'.join(map(_spelled, longest_first))}){after}")

    def of(self, word: str) -> Word:
        spelled = word.lower()
        return self.by_spelling.get(spelled) or self.by_spelling[spelled.removesuffix("s")]


@cache
def finder() -> WordFinder:
    return WordFinder(load_words())


class PageWords:
    """Marks the words of a page as links to their meanings at its end: in each section and in each table a word's first
    place. The first one on the page that is not folded away is a stop of the Tab key."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._in_part: set[str] = set()
        self._stops: set[str] = set()
        self._folded = False

    def part(self, folded: bool = False) -> str:
        """Begin a section or a table. Returns an empty text, for a template."""
        self._in_part.clear()
        self._folded = folded
        return ""

    @property
    def used(self) -> list[Word]:
        """Those that were marked, in the order of the file."""
        return [word for word in load_words() if word.id in self._used]

    def mark(self, text: str) -> Markup:
        """The text with its words as links."""
        parts = finder().pattern.split(printable(text))
        return Markup("").join(self._link(part) if i % 2 else escape(part) for i, part in enumerate(parts))

    def _link(self, spelled: str) -> Markup:
        word = finder().of(spelled)
        if word.id in self._in_part:
            return escape(spelled)
        self._in_part.add(word.id)
        self._used.add(word.id)
        no_stop = Markup(' tabindex="-1"') if self._folded or word.id in self._stops else ""
        if not no_stop:
            self._stops.add(word.id)
        return Markup('<a class="word" href="#{}"{}>{}</a>').format(word.id, no_stop, spelled)
