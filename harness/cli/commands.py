"""The commands, and a function run as one of them. Knows the modules of the commands by name only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from harness.cli.page import Rows, flags_of
from harness.common.errors import RequestError, given_twice, nearest_or_list
from harness.common.paths import PROGRAM
from harness.common.printable import printable

# The titles of `help`, with the folders of harness/cli whose commands are below each.
GROUPS = {"Launch": ("launch", "doctor"), "Watch": ("watch", "live"), "Read": ("read", "export"), "Study": ("study",)}

# The sentences of Click for a value that is not one of the choices, and of pydantic for one that is no number.
_WRONG_VALUE = re.compile(r"Invalid value for '([^']*)': ('.*') is not one of (.*)\.$")
_NO_NUMBER = re.compile(r"Invalid value for '(.*)': Input should be a valid (integer|number)")


class OptionalValue(NamedTuple):
    """An option whose value may be left out: what it then is, and whether the word after it is a value."""

    value: str
    is_value: Callable[[str], bool]


class CommandEntry(NamedTuple):
    """A command. function: module:name, imported when it runs. help: its line among all commands.

    exits, examples, docs: as in a `Page`, of a command whose function Typer reads; the others write their page.
    """

    function: str
    help: str
    launches: bool = False  # it starts trainings
    optional: Mapping[str, OptionalValue] = {}
    reads_arguments: bool = False  # its function takes the words after its name; `page` of its module is its help
    exits: Rows = ()
    examples: Rows = ()
    docs: str = ""

    @property
    def group(self) -> str:
        """The title below which `help` lists it."""
        folder = self.function.split(".")[2]
        return next(title for title, folders in GROUPS.items() if folder in folders)


OfWords = partial(CommandEntry, launches=True, reads_arguments=True)  # its function reads a launch among its words

COMMANDS = {
    "run": OfWords("harness.cli.launch.run:run", "launch your own training, run -- train.py; run RUN: a run again"),
    "observe": CommandEntry(
        "harness.cli.launch.observe:observe",
        "one word before your own command, in the job that you have",
        reads_arguments=True,
    ),
    "doctor": OfWords("harness.cli.doctor.doctor:doctor", "check this machine and the site before a course"),
    "sites": CommandEntry(
        "harness.cli.launch.sites:sites",
        "the known sites; sites NAME: one in full",
        examples=[("sites", "all sites"), ("sites leonardo", "one site, with the defaults of each field")],
    ),
    "ls": CommandEntry(
        "harness.cli.watch.ls:ls",
        "your runs: flags, step, largest loss",
        optional={"--html": OptionalValue("", lambda word: bool(word) and not word.startswith("-"))},
        examples=[
            ("ls", "the newest runs"),
            ("ls -n 100 --json", "the newest 100, for a script"),
            ("ls --html", "a page of all runs, to sort, filter and compare"),
        ],
    ),
    "watch": CommandEntry(
        "harness.cli.live.watch:watch",
        "one live screen: progress, slow ranks, what is stuck",
        exits=[("0", "done, or quit"), ("1", "a watched run did not complete"), ("2", "wrong request")],
        examples=[
            ("watch", "the newest run that has not ended"),
            ("watch 4711 4712", "a line for each of these runs"),
            ("watch --all", "a line for each run that has not ended"),
            ("watch last --json", "everything, one JSON object a line, for a script"),
        ],
        docs="docs/watch.md",
    ),
    "status": CommandEntry(
        "harness.cli.watch.status:status",
        "state and exit status of each node",
        examples=[("status last", "the newest run"), ("status 1234567", "a run by its job id")],
    ),
    "logs": CommandEntry(
        "harness.cli.watch.status:logs",
        "the output of a run (-f: as it is printed)",
        examples=[("logs last -f", "the output of the newest run, until it ends")],
    ),
    "capture": CommandEntry(
        "harness.cli.watch.capture:capture",
        "record some steps of a running training",
        examples=[("capture start last --steps 5", "record five steps"), ("capture stop last", "end early")],
    ),
    "cancel": CommandEntry(
        "harness.cli.watch.status:cancel",
        "stop a run and keep its traces",
        examples=[("cancel last", "stop the newest run")],
    ),
    "rm": CommandEntry(
        "harness.cli.watch.rm:rm",
        "delete runs, after a question",
        examples=[("rm local-3 local-4", "two runs"), ("rm 1234567 --yes", "without a question, for a script")],
    ),
    "report": CommandEntry(
        "harness.cli.read.report:report",
        "where the time went, from a run or from any traces",
        examples=[
            ("report last", "the answer, and a page to send"),
            ("report last --full", "every table in the terminal"),
            ("report path/to/traces", "the same for nsys, Kineto or rocprofv3 traces"),
        ],
        docs="docs/metrics.md",
    ),
    "whatif": CommandEntry(
        "harness.cli.read.whatif:whatif",
        "predicted step time with one thing changed",
        optional={"--verify": OptionalValue("1", str.isdigit)},
        exits=[
            ("0", "answered"),
            ("1", "no answer"),
            ("2", "wrong request"),
            ("3", "--verify cannot tell: a recording is not good"),
        ],
        examples=[
            ("whatif last", "the changes, the largest gain first"),
            ("whatif last --verify", "also make a run with the first change, and compare"),
        ],
        docs="docs/investigate.md",
    ),
    "compare": CommandEntry(
        "harness.cli.read.compare:compare",
        "differences between runs, in configuration and in result",
        exits=[("0", "compared"), ("1", "an expression of --fail-if is true"), ("2", "wrong request")],
        examples=[
            ("compare local-1 local-2", "two runs"),
            ("compare local-1 local-2 --fail-if 'step_time > 1.05'", "exit 1 if B takes 5 % more time"),
        ],
    ),
    "export": CommandEntry(
        "harness.cli.export.export:export", "a Paraver or Perfetto trace, tables, plots", reads_arguments=True
    ),
    "lesson": OfWords("harness.cli.study.lesson:lesson", "a question and its two runs; mystery: find a hidden cause"),
    "check": CommandEntry(
        "harness.cli.study.check:check", "whether B is slower than A, from several runs of each", reads_arguments=True
    ),
    "sweep": OfWords("harness.cli.study.sweep:sweep", "all combinations of some settings; scaling: of devices"),
    "reference": OfWords(
        "harness.cli.study.reference:reference", "the stored runs of a workshop: record, check, show, package"
    ),
}


def run_command(name: str, function: Callable[..., object], argv: list[str]) -> int:
    """Run a function as a Typer command line; a number that it returns is the exit code."""
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, context_settings={"help_option_names": []})(function)
    _refuse_twice(name, function, argv)
    try:
        result = app(
            _completed(argv, COMMANDS[name.split(maxsplit=1)[0]].optional),
            prog_name=f"{PROGRAM} {name}",
            standalone_mode=False,
        )
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Typer would call a closed pipe a failure
            raise leaving.__context__ from None
        raise
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        print(f"{PROGRAM}: {name}: {_sentence(error, name, function)}", file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0


def _sentence(error: Any, name: str, function: Callable[..., object]) -> str:
    """What Typer refuses, as all other requests are refused."""
    where = f"{PROGRAM} help {name}"
    if unknown := getattr(error, "option_name", None) if type(error).__name__ == "NoSuchOption" else None:
        hint = nearest_or_list(unknown, flags_of(function), f"{where} lists all flags")
        return f"unknown flag {printable(unknown)}{hint}"
    said = error.format_message().replace("Value error, ", "").replace("' / '", "/")  # pydantic's words inside Typer's
    if missing := re.match(r"Missing argument '(.*)'\.", said):
        return f"{missing[1]} is missing ({where})"
    if wrong := _WRONG_VALUE.match(said):
        flag, value, allowed = wrong.groups()
        choices = allowed.replace("'", "")
        return f"{flag}: got {value}, takes one of {choices} ({where})"
    if wrong := _NO_NUMBER.match(said):
        return f"{wrong[1]}: takes a {'whole ' * (wrong[2] == 'integer')}number ({where})"
    said = re.sub(
        r"^Invalid value for '([^']*)': Input should be greater than or equal to", r"\1: takes a number ≥", said
    )
    if further := re.match(r"Got unexpected extra argument\(?s?\)? \((.*)\)", said, re.DOTALL):
        return f"unexpected word {printable(further[1])!r} ({where})"
    return re.sub(r"\s*\n\s*", " ", said) + f" ({where})"  # it lists choices in lines of their own


def _refuse_twice(name: str, function: Callable[..., object], argv: list[str]) -> None:
    """Raises RequestError: a flag that takes one value got two; Typer would take the last."""
    given: dict[str, str] = {}
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        flag, equals, joined = word.partition("=")
        if flags_of(function).get(flag):
            value = joined if equals else after
            if given.setdefault(flag, value) != value:
                raise RequestError(f"{name}: {given_twice(flag, given[flag], value)}")


def _completed(argv: list[str], optional: Mapping[str, OptionalValue]) -> list[str]:
    """The arguments with the values that were left out: Typer has no option with an optional value."""
    completed = []
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        completed.append(word)
        if word in optional and not optional[word].is_value(after):
            completed.append(optional[word].value)
    return completed
