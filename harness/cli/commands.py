"""The commands, and a function run as one of them. Knows the modules of the commands by name only."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from harness.common.paths import PROGRAM


class LeftOut(NamedTuple):
    """An option whose value may be left out: what it then is, and whether the word after it is a value."""

    value: str
    is_value: Callable[[str], bool]


class Entry(NamedTuple):
    """Where a command lives, and its line in the help."""

    module: str
    help: str
    launches: bool = False  # it starts trainings, so it needs the checkout
    optional: Mapping[str, LeftOut] = {}
    reads_words: bool = False  # its function takes the words after its name, and reads them itself


COMMANDS = {
    "plan": Entry(
        "harness.cli.launch.plan",
        "what a launch with the same words would need, take and cost",
        launches=True,
        reads_words=True,
    ),
    "health": Entry(
        "harness.cli.launch.single_tests",
        "two minutes before a long run: the slow GPU, node or link, named; exit code 1 if there is one",
        launches=True,
        reads_words=True,
    ),
    "overlap-test": Entry(
        "harness.cli.launch.single_tests",
        "how much communication hides behind computation here, against theory",
        launches=True,
        reads_words=True,
    ),
    "ls": Entry("harness.cli.watch.ls", "the runs there are, with their states and step times"),
    "status": Entry("harness.cli.watch.status", "state of a run, per node"),
    "logs": Entry("harness.cli.watch.status", "what a run printed (-f: as it comes)"),
    "cancel": Entry("harness.cli.watch.cancel", "stop a run; its traces are kept"),
    "capture": Entry(
        "harness.cli.watch.capture",
        "record steps of a training that runs: capture start RUN, capture stop RUN",
    ),
    "rerun": Entry("harness.cli.launch.rerun", "run a run.json again", launches=True),
    "report": Entry(
        "harness.cli.read.report",
        "where the time went, from a run or from any traces",
        optional={"--notebook": LeftOut("", lambda word: word.endswith(".ipynb"))},
    ),
    "compare": Entry("harness.cli.read.compare", "what differs between runs, in configuration and in result"),
    "check": Entry(
        "harness.cli.study.check",
        "is B worse than A? by several runs of each; it may say that it cannot tell",
        reads_words=True,
    ),
    "lesson": Entry(
        "harness.cli.study.lesson",
        "the exercises' questions, with hints and the answer from your own runs",
        launches=True,
    ),
    "whatif": Entry(
        "harness.cli.read.whatif",
        "what a step would take with one thing changed; --verify makes the run and compares",
        optional={"--verify": LeftOut("1", str.isdigit)},
    ),
    "mystery": Entry(
        "harness.cli.study.mystery",
        "a training that is slow for a reason that you find: start one, answer, reveal, class",
        launches=True,
        reads_words=True,
    ),
    "sweep": Entry(
        "harness.cli.study.sweep",
        "every combination of a file's settings as runs, within a budget, and what was measured at each",
        launches=True,
        reads_words=True,
    ),
    "scaling": Entry(
        "harness.cli.study.scaling",
        "one training on more and more nodes: speed-up, efficiency, and what limits them",
        launches=True,
        reads_words=True,
    ),
    "reference": Entry(
        "harness.cli.study.reference",
        "stored runs of a whole workshop: record, check, show, package",
        launches=True,
        reads_words=True,
    ),
    "paraver": Entry("harness.cli.read.export", "a Paraver trace (.prv .pcf .row) of a run"),
    "perfetto": Entry("harness.cli.read.export", "one Perfetto trace of all ranks of a run"),
    "faults": Entry(
        "harness.cli.launch.faults", "what --fault can inject into a training, to see what it looks like"
    ),
    "doctor": Entry(
        "harness.cli.launch.doctor",
        "the day before: is all there that a course needs, and if not, the command that mends it",
        launches=True,
    ),
    "sites": Entry("harness.cli.launch.sites", "the sites known, or one in full"),
}


def run_command(name: str, function: Callable[..., object], argv: list[str]) -> int:
    """Run a function as a Typer command line; a number that it returns is the exit code."""
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, context_settings={"help_option_names": ["-h", "--help"]})(function)
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
        said = error.format_message().replace("Value error, ", "")  # pydantic's words inside Typer's
        said = re.sub(r"\s*\n\s*", " ", said)  # it lists choices in lines of their own
        print(f"{PROGRAM} {name}: {said} (see {PROGRAM} {name} --help)", file=sys.stderr)
        return 2
    return result if isinstance(result, int) else 0


def _completed(argv: list[str], optional: Mapping[str, LeftOut]) -> list[str]:
    """The arguments with the values that were left out: Typer has no option with an optional value."""
    completed = []
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        completed.append(word)
        if word in optional and not optional[word].is_value(after):
            completed.append(optional[word].value)
    return completed
