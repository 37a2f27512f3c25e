"""The words of a command line before Typer gets them: which are a launch's, and what is wrong with a flag. Typer tells
the first mistake only, takes a flag for the value of the one before, and lets the last of two values count."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.common.display.printable import printable
from harness.common.errors import unknown_flag

RUN = "run"
OBSERVE = "observe"
COMPLETE = "_TRAINING_TRACES_COMPLETE"  # the variable with which a shell asks for words
OF_DEEPSPEED = re.compile(r"--local[_-]rank=\d+")  # its launcher puts this word before the script's own
HELP = frozenset({"-h", "--help"})
_DASH = "[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]"
_ANOTHER_DASH = re.compile(rf"(?=-?{_DASH})[-{_DASH[1:]}+(?P<name>.*)")
_EXERCISE = re.compile(r"-e(=?[0-9].*)?|--exercise(=.*)?")


class Words(NamedTuple):
    """launcher: ours. script: the words of the training, untouched; None: it is an exercise, or no launch."""

    launcher: list[str]
    script: tuple[str, ...] | None


def split_launch(arguments: Sequence[str], is_run: bool = False) -> Words:
    """The words before and after the first `--`, where those after it are a training's.

    Behind `-e` they are flags of an exercise, and so are words that begin with a flag, unless `run` was typed.

    >>> split_launch(["-g", "2", "--", "train.py", "--", "-e", "1"])
    Words(launcher=['-g', '2'], script=('train.py', '--', '-e', '1'))
    >>> split_launch(["-e", "1", "--", "--mixed-precision"]).script
    """
    words = list(arguments)
    if "--" not in words:
        return Words(words, None)
    at = words.index("--")
    before, after = words[:at], words[at + 1 :]
    if _names_exercise(before) or (_begins_with_flag(after) and (not is_run or _names_exercise(after))):
        return Words(words, None)
    return Words(before, tuple(after))


def _names_exercise(words: Sequence[str]) -> bool:
    return any(_EXERCISE.fullmatch(word) for word in words)


def _begins_with_flag(after: Sequence[str]) -> bool:
    """Whether no program begins there: nothing, or a flag other than Python's `-m`."""
    return not after or (after[0].startswith("-") and after[0] != "-m")


def is_prefix(argv: Sequence[str]) -> bool:
    """Whether these arguments put `observe` before a command: then nothing of the environment may change before it."""
    words = argv[1:] if argv and OF_DEEPSPEED.fullmatch(argv[0]) else argv
    if not words or words[0] != OBSERVE or "--" not in words:
        return False
    return not HELP & set(words[: words.index("--")])


class CommandLine(NamedTuple):
    """What was typed of a launch. `given`: the last spelling of each option → its value, all its values, or True."""

    given: dict[str, Any]
    unknown: list[str]  # words that look like a flag and are none; the value of such a flag is left out
    words: list[str]  # words that are neither a flag nor the value of one
    complaints: list[str]  # a sentence for each flag without its value, or that stands twice
    typed: list[str]  # the flags as they were spelled
    script: tuple[str, ...] | None  # the words of the user's own training
    flags: Sequence[str]  # all that the command has
    argv: Sequence[str]  # all words, as they were typed


class TypedFlag(NamedTuple):
    """What a reader of words knows of an option. alone: its value, if none follows."""

    spelling: str  # all of them: `-n/--nodes`
    takes_value: bool
    repeats: bool
    alone: str | None


class CheckedWords(NamedTuple):
    """words: what Typer gets, without what is wrong. The others as in `CommandLine`."""

    words: list[str]
    unknown: list[str]
    complaints: list[str]
    typed: list[str]


def mistakes(words: CheckedWords | CommandLine, flags: Iterable[str], where: str) -> Iterator[str]:
    """A sentence for each wrong flag. where: the command that lists all flags."""
    yield from (unknown_flag(word, flags, where) for word in words.unknown)
    yield from (f"{complaint} ({where})" for complaint in words.complaints)


def check_words(argv: Sequence[str], flags: Mapping[str, TypedFlag]) -> CheckedWords:
    """Look at each word up to `--`. flags: by each of their spellings."""
    checked = CheckedWords([], [], [], [])
    left = deque(argv)
    while left:
        word = left.popleft()
        if word == "--":
            checked.words.extend([word, *left])
            break
        name = _name(word, flags)
        if name in flags:
            checked.typed.append(name)
            _check_value(word, name, flags, left, checked)
        elif (why := another_dash(word)) or not (is_plain(word) or all(f"-{letter}" in flags for letter in word[1:])):
            (checked.complaints if why else checked.unknown).append(why or word)
            if "=" not in word and left and _is_value(left[0]):
                left.popleft()  # meant for the wrong flag: one mistake is one sentence
        else:
            checked.words.append(word)  # an argument, or joined switches: -sz
    count = Counter(flags[name] for name in checked.typed)
    twice = [flag.spelling for flag, times in count.items() if times > 1 and not flag.repeats]
    checked.complaints.extend(f"{spelling} is given twice: drop one" for spelling in twice)
    return checked


def _check_value(word: str, name: str, flags: Mapping[str, TypedFlag], left: deque[str], checked: CheckedWords) -> None:
    """Pass on a flag with its value, which may be the next word."""
    flag, following = flags[name], left[0] if left else None
    if word != name and flag.takes_value and len(name) == 2:
        checked.words.extend([name, word[2:].removeprefix("=")])  # Typer knows -n2, not -n=2
    elif word != name and not flag.takes_value:
        checked.complaints.append(f"{name} takes no value: leave out {printable(word.removeprefix(name))}")
    elif word != name or not flag.takes_value:
        checked.words.append(word)
    elif flag.alone is not None and (following is None or following.startswith("-")):
        checked.words.append(f"{name}={flag.alone}")
    elif following is None or following.partition("=")[0] in flags or re.match("--[A-Za-z]", following):
        checked.complaints.append(f"{name} requires an argument")
    else:
        checked.words.extend([name, left.popleft()])


def _name(word: str, flags: Mapping[str, TypedFlag]) -> str:
    """The flag of a word that has a value in it, too: `--nodes=2`, `-n2`."""
    name = word.partition("=")[0]
    return word[:2] if name not in flags and word[:2] in flags and flags[word[:2]].takes_value else name


def another_dash(word: str) -> str:
    """The sentence for a flag that begins with another dash than a hyphen, as slides and documents have it; empty: it
    is none, or a file."""
    found = _ANOTHER_DASH.fullmatch(word)
    if found is None or os.path.lexists(word):
        return ""
    name, *value = re.sub(_DASH, "-", found["name"]).split("=", 1)
    is_short = len(name) == 1 or (len(name) > 1 and not name[1].isalpha())  # -e, -n2, a negative number
    flag = "=".join(["-" * (2 - is_short) + name, *value])
    return f"{word}: a flag begins with a hyphen (-), and this is another dash: type {flag}"


def is_plain(word: str) -> bool:
    """Whether a word that is no flag's value is an argument; else it is an unknown flag."""
    return word == "-" or not word.startswith("-")


def _is_value(word: str) -> bool:
    return not word.startswith("-") or re.fullmatch(r"-[0-9.]+", word) is not None
