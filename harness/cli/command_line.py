"""The command line of a launch, read as flags and values. The experiment and the site decide which are allowed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from harness.common.errors import given_twice
from harness.common.paths import PROGRAM
from harness.common.printable import printable

if TYPE_CHECKING:
    from harness.experiment.options import Option

RUN = "run"
# The commands whose words are one launch.
TAKE_A_LAUNCH = frozenset({RUN, "doctor", "sweep"})
_EXERCISE = re.compile(r"-e(=?[0-9].*)?|--exercise(=.*)?")
DRY_RUN = "print the script and its warnings, start nothing"


class Words(NamedTuple):
    """launcher: ours. script: the words of the training, untouched; None: it is an exercise, or no launch."""

    launcher: list[str]
    script: tuple[str, ...] | None


def split_line(argv: Sequence[str]) -> Words:
    """The whole command line of `slurm.sh`, as `split_launch`; one that is no launch stays whole."""
    if argv and argv[0].startswith("-"):
        return split_launch(argv)
    if not argv or argv[0] not in TAKE_A_LAUNCH:
        return Words(list(argv), None)
    words = split_launch(argv[1:], is_run=argv[0] == RUN)
    return words._replace(launcher=[argv[0], *words.launcher])


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
    if names_exercise(before) or (_begins_with_flag(after) and (not is_run or names_exercise(after))):
        return Words(words, None)
    return Words(before, tuple(after))


def names_exercise(words: Sequence[str]) -> bool:
    return any(_EXERCISE.fullmatch(word) for word in words)


def _begins_with_flag(after: Sequence[str]) -> bool:
    """Whether no program begins there: nothing, or a flag other than Python's `-m`."""
    return not after or (after[0].startswith("-") and after[0] != "-m")


class DeclaredParameter(NamedTuple):
    """One command-line parameter: its spellings, and whether it takes a value."""

    names: tuple[str, ...]
    takes_value: bool
    help: str
    repeats: bool = False  # every value counts, not only the last
    alone: str | None = None  # its value, if none follows


class LaunchLine(NamedTuple):
    """What was typed. `given`: the last spelling of each parameter → its value, or all its values, or True."""

    given: dict[str, str | tuple[str, ...] | bool]
    unknown: list[str]  # arguments that are neither a parameter nor the value of an unknown flag
    complaints: list[str]  # a sentence for each flag without its value, with one that it does not take, or with two
    script: tuple[str, ...] | None = None  # the words of the user's own training


BEHAVIOUR = [
    DeclaredParameter(("--site",), True, f"site: a name ({PROGRAM} sites) or a site file"),
    DeclaredParameter(
        ("--plan",), False, "print the memory, time and cost of the launch with their sources, start nothing"
    ),
    DeclaredParameter(("--dry-run",), False, f"{DRY_RUN} (--explain: what each line is for)"),
    DeclaredParameter(
        ("--explain",), False, "with --dry-run: explain each line of the script, and where its value comes from"
    ),
    DeclaredParameter(("--wait",), False, "wait for the end, then report"),
    DeclaredParameter(("--follow",), False, "as --wait, and show the output meanwhile"),
    DeclaredParameter(("--strict",), False, "a warning is an error: nothing starts"),
    DeclaredParameter(("--json",), False, "print machine-readable JSON"),
    DeclaredParameter(("-h", "--help"), False, "show this page; --help --all: with the flags of single experiments"),
]


@cache
def declared() -> dict[str, DeclaredParameter]:
    """Each spelling and its parameter: the experiments' options, the site's, and how the launch itself behaves."""
    from harness.experiment.options import options_of
    from harness.experiment.parse import all_options
    from harness.site.site import Site

    options = [option for pairs in all_options().values() for _, option in pairs]
    found = [each for option in [*options, *options_of(Site)] for each in _parameters(option)]
    # The one with most spellings last, so that it stays: `--steps` is the same parameter as `--iters/--steps`.
    found.sort(key=lambda each: len(each.names))
    return {name: each for each in [*found, *BEHAVIOUR] for name in each.names}


def _parameters(option: Option) -> Iterator[DeclaredParameter]:
    from harness.experiment.options import VALUE

    valued = tuple(name for name, meaning in option.flag.names.items() if meaning is VALUE)
    if valued:
        yield DeclaredParameter(valued, True, option.help, option.flag.repeats, option.flag.alone)
    for name in option.flag.names:
        if name not in valued:
            yield DeclaredParameter((name,), False, option.help)


def read_line(argv: list[str], flags: Mapping[str, DeclaredParameter]) -> LaunchLine:
    """`argv` in terms of `flags`, in the order typed; `--` may stand anywhere and means nothing."""
    line = LaunchLine({}, [], [])
    arguments = deque(word for word in argv if word != "--")
    while arguments:
        word = arguments.popleft()
        name, value = _parted(word, flags)
        if name not in flags:
            line.unknown.append(word)
            if name.startswith("-") and value is None and arguments and _is_value(arguments[0]):
                arguments.popleft()  # meant for the unknown flag: one mistake is one sentence
        elif not flags[name].takes_value:
            if value is not None:
                line.complaints.append(f"{name} takes no value: leave out ={printable(value)}")
            line.given[flags[name].names[-1]] = True
        elif value is None and flags[name].alone and (not arguments or arguments[0].startswith("-")):
            _take(line, flags[name], str(flags[name].alone))
        elif value is None and (not arguments or _is_flag(arguments[0], flags)):
            line.complaints.append(f"{name} requires an argument")
        else:
            _take(line, flags[name], arguments.popleft() if value is None else value)
    return line


def read_launch(argv: list[str], flags: Mapping[str, DeclaredParameter], is_run: bool = False) -> LaunchLine:
    """`argv` as `read_line` reads it, up to the words of the user's own training. is_run: `run` was typed before it."""
    words = split_launch(argv, is_run)
    return read_line(words.launcher, flags)._replace(script=words.script)


def _take(line: LaunchLine, flag: DeclaredParameter, value: str) -> None:
    before = line.given.get(flag.names[-1])
    if flag.repeats:
        line.given[flag.names[-1]] = (*before, value) if isinstance(before, tuple) else (value,)
        return
    line.given[flag.names[-1]] = value
    if before not in (None, value):
        line.complaints.append(given_twice("/".join(flag.names), printable(str(before)), printable(value)))


def _parted(word: str, flags: Mapping[str, DeclaredParameter]) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    if name not in flags and word[:2] in flags and flags[word[:2]].takes_value:
        return word[:2], word[2:]
    return name, value if equals else None


def _is_flag(word: str, flags: Mapping[str, DeclaredParameter]) -> bool:
    """Whether the word after a flag is the next flag and so not its value: `-a --dry-run`."""
    return word.partition("=")[0] in flags or re.match("--[A-Za-z]", word) is not None


def _is_value(word: str) -> bool:
    return not word.startswith("-") or re.fullmatch(r"-[0-9.]+", word) is not None
