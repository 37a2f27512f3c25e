"""The parser of all command lines: words into values, by declared parameters, and a sentence for each wrong word.

The parameters of a launch are options of the experiments and of the site, which decide where each is allowed; those of
a command are in its function's signature.
"""

from __future__ import annotations

import inspect
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

from harness.common.display.format import cut
from harness.common.display.printable import printable
from harness.common.errors import RequestError, given_twice, nearest, unknown_flag
from harness.common.paths import COMMAND

if TYPE_CHECKING:
    from harness.experiment.options import Option

RUN = "run"
# The commands whose words are one launch.
TAKE_A_LAUNCH = frozenset({RUN, "sweep"})
DRY_RUN = "print the script and its warnings, start nothing"
_EXERCISE = re.compile(r"-e(=?[0-9].*)?|--exercise(=.*)?")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.IGNORECASE)
_MOST_SHOWN = 40  # characters of a word that is no number
_TAKES = {int: "N", float: "N"}


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
    if _names_exercise(before) or (_begins_with_flag(after) and (not is_run or _names_exercise(after))):
        return Words(words, None)
    return Words(before, tuple(after))


def _names_exercise(words: Sequence[str]) -> bool:
    return any(_EXERCISE.fullmatch(word) for word in words)


def _begins_with_flag(after: Sequence[str]) -> bool:
    """Whether no program begins there: nothing, or a flag other than Python's `-m`."""
    return not after or (after[0].startswith("-") and after[0] != "-m")


class DeclaredParameter(NamedTuple):
    """One parameter of a command line: a flag, or an argument, which is known by its place.

    names: its spellings; of an argument, the one name that pages and messages give it.
    takes: what stands for its value on pages, as `N`; empty: a switch, which takes none.
    repeats: every value counts, not only the last.
    alone: its value, if none follows.
    off: the spellings of a switch that switch it off.
    kind: `str`, `Path`, `int`, `float`, or a `Literal` of all allowed words.
    least, most: the range of a number, both included.
    words: how many words its value has; the value of several is a tuple.
    required: a command cannot do without it.
    """

    names: tuple[str, ...]
    takes: str
    help: str
    repeats: bool = False
    alone: str | None = None
    off: tuple[str, ...] = ()
    kind: Any = str
    least: float | None = None
    most: float | None = None
    words: int = 1
    required: bool = False

    @property
    def spelling(self) -> str:
        """All spellings, as messages name them: `-n/--nodes`."""
        return "/".join(self.names)

    @property
    def is_list(self) -> bool:
        return self.repeats and bool(self.takes)

    @property
    def is_flag(self) -> bool:
        return self.names[0].startswith("-")


class Alone(NamedTuple):
    """Beside Typer's option in an annotation: its value may be left out, and is then this word."""

    word: str


class CommandLine(NamedTuple):
    """What was typed. `given`: the last spelling of each parameter → its value, all its values, or True."""

    given: dict[str, Any]
    unknown: list[str]  # words that look like a flag and are none; the value of such a flag is left out
    words: list[str]  # words that are neither a flag nor the value of one
    complaints: list[str]  # a sentence for each flag without its value, with a wrong one, or with two
    typed: list[str]  # the flags as they were spelled
    script: tuple[str, ...] | None = None  # the words of the user's own training


BEHAVIOUR = [
    DeclaredParameter(("--site",), "NAME|FILE", f"site: a name ({COMMAND} sites) or a site file"),
    DeclaredParameter(
        ("--plan",), "", "print the memory, time and cost of the launch with their sources, start nothing"
    ),
    DeclaredParameter(("--dry-run",), "", f"{DRY_RUN} (--explain: what each line is for)"),
    DeclaredParameter(
        ("--explain",), "", "with --dry-run: explain each line of the script, and where its value comes from"
    ),
    DeclaredParameter(("--wait",), "", "wait for the end, then report"),
    DeclaredParameter(("--follow",), "", "as --wait, and show the output meanwhile"),
    DeclaredParameter(("--json",), "", "print machine-readable JSON"),
    DeclaredParameter(("-h", "--help"), "", "show this page; --help --all: with the flags of single experiments"),
]


@cache
def declared() -> dict[str, DeclaredParameter]:
    """Each spelling and its parameter: the experiments' options, the site's, and how the launch itself behaves."""
    from harness.experiment.options import options_of
    from harness.experiment.parse import all_options
    from harness.site.site import Site

    options = [option for pairs in all_options().values() for _, option in pairs]
    found = [each for option in [*options, *options_of(Site)] for each in _of_option(option)]
    # The one with most spellings last, so that it stays: `--steps` is the same parameter as `--iters/--steps`.
    found.sort(key=lambda each: len(each.names))
    return by_spelling([*found, *BEHAVIOUR])


def by_spelling(declarations: Iterable[DeclaredParameter]) -> dict[str, DeclaredParameter]:
    """Each spelling of the flags and its parameter; of two that share a spelling, the last."""
    return {name: each for each in declarations if each.is_flag for name in each.names}


def _of_option(option: Option) -> Iterator[DeclaredParameter]:
    from harness.experiment.options import VALUE

    flag = option.flag
    valued = tuple(name for name, meaning in flag.names.items() if meaning is VALUE)
    if valued:
        yield DeclaredParameter(valued, flag.metavar, option.help, flag.repeats, flag.alone)
    for name in flag.names:
        if name not in valued:
            yield DeclaredParameter((name,), "", option.help)


@cache
def parameters_of(function: Callable[..., object]) -> dict[str, DeclaredParameter]:
    """The parameters of a command by the names that its function gives them. Each annotation has a type, and Typer's
    option or argument, of which the spellings, the metavar, the help and the range are read."""
    signature = inspect.signature(function, eval_str=True)
    return {name: _of_annotation(each) for name, each in signature.parameters.items()}


def _of_annotation(parameter: inspect.Parameter) -> DeclaredParameter:
    from typer.models import OptionInfo  # here, since a dry run needs no Typer

    hint, info, *others = get_args(parameter.annotation)
    kind = next((each for each in get_args(hint) if NoneType in get_args(hint) and each is not NoneType), hint)
    inner = get_args(kind) if get_origin(kind) in (list, tuple) else (kind,)
    repeats, required = get_origin(kind) is list, parameter.default is inspect.Parameter.empty
    text = info.help or ""
    if not required and parameter.default is not None and kind is not bool:
        text += f" [{parameter.default}]"
    if not isinstance(info, OptionInfo):
        return DeclaredParameter((info.metavar,), info.metavar, text, repeats, kind=inner[0], required=required)
    # Typer keeps the first of the spellings as the default of an annotated option.
    spelled = [word for word in (str(info.default), *(info.param_decls or ())) if word.startswith("-")]
    names = tuple("/".join(spelled or [f"--{parameter.name.replace('_', '-')}"]).split("/"))
    if kind is bool:
        off = tuple(name for name in names[1:] if name.startswith("--no-"))
        return DeclaredParameter(names, "", text, off=off)
    takes = info.metavar or ("|".join(get_args(kind)) if get_origin(kind) is Literal else _TAKES.get(inner[0], "NAME"))
    alone = next((each.word for each in others if isinstance(each, Alone)), None)
    words = len(inner) if get_origin(kind) is tuple else 1
    limits = {"kind": inner[0], "least": info.min, "most": info.max, "words": words, "required": required}
    return DeclaredParameter(names, takes, text, repeats, alone, **limits)


def is_plain(word: str) -> bool:
    """Whether a word that is no flag's value is an argument; else it is an unknown flag."""
    return word == "-" or not word.startswith("-")


def run_command(
    name: str, function: Callable[..., object], argv: Sequence[str], is_argument: Callable[[str], bool] = is_plain
) -> int:
    """Call the function of a command with the values of its words; a number that it returns is the exit code.

    Words after `--` are arguments, whatever they look like. Raises RequestError: a word is wrong, or one is missing.
    """
    parameters = parameters_of(function)
    flags, end = by_spelling(parameters.values()), [*argv, "--"].index("--")
    line = read_line(argv[:end], flags, is_argument)
    words = deque([*line.words, *argv[end + 1 :]])
    for parameter in parameters.values():
        if not parameter.is_flag:
            for _ in range(len(words) if parameter.is_list else min(len(words), 1)):
                _take(line, parameter, [words.popleft()])
    refuse_mistakes(line._replace(words=list(words)), flags, name)
    keys = {field: each.names[-1] for field, each in parameters.items()}
    given = {field: line.given[key] for field, key in keys.items() if key in line.given}
    if lacking := [each.spelling for field, each in parameters.items() if each.required and field not in given]:
        raise RequestError("\n".join(f"{name}: {spelling} is missing ({COMMAND} help {name})" for spelling in lacking))
    # An annotation says `list` where a launch has a tuple.
    result = function(**{field: [*each] if parameters[field].is_list else each for field, each in given.items()})
    return result if isinstance(result, int) else 0


def refuse_mistakes(line: CommandLine, flags: Mapping[str, DeclaredParameter], name: str) -> None:
    """Raises RequestError: a sentence for each wrong word of a command that takes these flags and no argument."""
    where = f"{COMMAND} help {name}"
    errors = [unknown_flag(word, flags, where) for word in line.unknown]
    errors += [f"{complaint} ({where})" for complaint in line.complaints]
    errors += [f"unexpected word {printable(' '.join(line.words))!r} ({where})"] * bool(line.words)
    if errors:
        raise RequestError("\n".join(f"{name}: {error}" for error in errors))


def read_launch(argv: list[str], flags: Mapping[str, DeclaredParameter], is_run: bool = False) -> CommandLine:
    """`argv` as `read_line` reads it, up to the words of the user's own training. is_run: `run` was typed before it."""
    words = split_launch(argv, is_run)
    return read_line(words.launcher, flags)._replace(script=words.script)


def read_line(
    argv: Sequence[str], flags: Mapping[str, DeclaredParameter], is_argument: Callable[[str], bool] = is_plain
) -> CommandLine:
    """`argv` in terms of `flags`, in the order typed; `--` may stand anywhere and means nothing."""
    line = CommandLine({}, [], [], [], [])
    words = deque(word for word in argv if word != "--")
    while words:
        word = words.popleft()
        name, value = _parted(word, flags)
        if name not in flags and (switches := _joined_switches(word, flags)):
            words.extendleft(reversed(switches))
            continue
        if name not in flags:
            of_arguments = is_argument(word)
            (line.words if of_arguments else line.unknown).append(word)
            if not of_arguments and value is None and words and _is_value(words[0]):
                words.popleft()  # meant for the unknown flag: one mistake is one sentence
            continue
        parameter = flags[name]
        line.typed.append(name)
        if not parameter.takes:
            _switch(line, parameter, name, value)
        elif value is None and parameter.alone is not None and not (words and _may_follow(parameter, words[0])):
            _take(line, parameter, [parameter.alone])
        else:
            taken = [] if value is None else [value]
            while words and len(taken) < parameter.words and not _is_flag(words[0], flags):
                taken.append(words.popleft())
            if len(taken) == parameter.words:
                _take(line, parameter, taken)
            else:
                needed = "an argument" if parameter.words == 1 else f"{parameter.words} arguments"
                line.complaints.append(f"{name} requires {needed}")
    return line


def _switch(line: CommandLine, parameter: DeclaredParameter, name: str, value: str | None) -> None:
    key = parameter.names[-1]
    before, now = line.given.get(key), name not in parameter.off
    if value is not None:
        line.complaints.append(f"{name} takes no value: leave out ={printable(value)}")
    if before not in (None, now):
        line.complaints.append(f"{' and '.join(parameter.names)} exclude each other: drop one")
    line.given[key] = now


def _take(line: CommandLine, parameter: DeclaredParameter, words: Sequence[str]) -> None:
    key = parameter.names[-1]
    before = line.given.get(key)
    try:
        values = [_value(parameter, word) for word in words]
    except ValueError as error:
        line.complaints.append(f"{parameter.spelling}: {error}")
        return
    if parameter.repeats:
        line.given[key] = (*(before or ()), *values)
        return
    line.given[key] = now = values[0] if parameter.words == 1 else tuple(values)
    if before not in (None, now):
        line.complaints.append(given_twice(parameter.spelling, _shown(before), _shown(now)))


def _shown(value: object) -> str:
    return printable(" ".join(value) if isinstance(value, tuple) else str(value))


def _value(parameter: DeclaredParameter, word: str) -> Any:
    """The value of a word. Raises ValueError: the end of a sentence on what the parameter takes."""
    kind = parameter.kind
    if choices := get_args(kind):
        if word in choices:
            return word
        near = nearest(word, choices)
        hint = f": did you mean {near}?" if near else ""
        raise ValueError(f"got {printable(word)!r}, takes one of {', '.join(choices)}{hint}")
    if kind not in (int, float):
        return kind(word)
    try:
        number = kind(word) if _NUMBER.fullmatch(word) else math.inf
    except ValueError:  # not a whole number, or one of thousands of digits
        number = math.inf
    least, most = parameter.least, parameter.most
    is_within = (least is None or number >= least) and (most is None or number <= most)
    if number == math.inf or not is_within:
        limits = " and ".join(f"{sign} {limit}" for sign, limit in (("≥", least), ("≤", most)) if limit is not None)
        takes = f"a {'whole ' * (kind is int)}number {limits}".rstrip()
        raise ValueError(f"got {cut(printable(word), _MOST_SHOWN)!r}, takes {takes}")
    return number


def _parted(word: str, flags: Mapping[str, DeclaredParameter]) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    if name not in flags and word[:2] in flags and flags[word[:2]].takes:
        return word[:2], word[2:]
    return name, value if equals else None


def _joined_switches(word: str, flags: Mapping[str, DeclaredParameter]) -> list[str]:
    """The switches of one letter that are written as one word, `-sz`; empty: it is no such word."""
    names = [f"-{letter}" for letter in word[1:]]
    return names if not is_plain(word) and all(name in flags and not flags[name].takes for name in names) else []


def _is_flag(word: str, flags: Mapping[str, DeclaredParameter]) -> bool:
    """Whether the word after a flag is the next flag and so not its value: `-a --dry-run`."""
    return word.partition("=")[0] in flags or re.match("--[A-Za-z]", word) is not None


def _is_value(word: str) -> bool:
    return not word.startswith("-") or re.fullmatch(r"-[0-9.]+", word) is not None


def _may_follow(parameter: DeclaredParameter, word: str) -> bool:
    """Whether a word is the value of a parameter that could do without."""
    return word.isascii() and word.isdigit() if parameter.kind is int else not word.startswith("-")
