"""The table of the commands. Knows their modules by name only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

Rows = Sequence[tuple[str, str]]  # of a page of help: what to type, and what it is for

# The titles of `help`, with the folders of harness/cli whose commands are below each.
GROUPS = {"Launch": ("launch", "doctor"), "Watch": ("watch", "live"), "Read": ("read", "export"), "Study": ("study",)}


class CommandEntry(NamedTuple):
    """A command. function: module:name, imported when it runs. help: its line among all commands.

    exits, examples, docs: as in a `HelpPage`, which is made of the function's parameters; the others write their page.
    """

    function: str
    help: str
    launches: bool = False  # it starts trainings
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
        examples=[
            ("ls", "the newest runs"),
            ("ls -n 100 --json", "the newest 100, for a script"),
            ("ls --html", "a page of all runs, to sort, filter and compare"),
        ],
    ),
    "watch": CommandEntry(
        "harness.cli.live.watch:watch",
        "one live screen: progress, slow ranks, what is stuck",
        exits=[("0", "done, or quit"), ("1", "the run did not complete"), ("2", "wrong request")],
        examples=[
            ("watch", "the newest run that has not ended"),
            ("watch 4711 --once", "look once, print the screen, and end"),
            ("watch last --json", "everything, one JSON object a line, for a script"),
        ],
        docs="docs/watch.md",
    ),
    "status": CommandEntry(
        "harness.cli.watch.status:status",
        "state, why it is so, missing files",
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
        "harness.cli.export.export:export", "a Paraver or Perfetto trace, or tables", reads_arguments=True
    ),
    "lesson": OfWords("harness.cli.study.lesson:lesson", "a question and its two runs; mystery: find a hidden cause"),
    "check": CommandEntry(
        "harness.cli.study.check:check", "whether B is slower than A, from several runs of each", reads_arguments=True
    ),
    "sweep": OfWords("harness.cli.study.sweep:sweep", "all combinations of some settings; nodes: scaling"),
    "reference": OfWords("harness.cli.study.reference:reference", "the stored runs of a workshop: record, check, show"),
}
