"""All pages of help in one style: the first screen, all commands, the page of one, the version. Of the commands it
loads only the one whose page is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from pkgutil import resolve_name
from textwrap import wrap
from typing import NamedTuple

from harness.cli.commands import COMMANDS, GROUPS, Rows
from harness.cli.parser import DeclaredParameter, parameters_of
from harness.cli.terminal import columns
from harness.common.errors import RequestError, nearest_or_list
from harness.common.paths import COMMAND, DISTRIBUTION, IN_CHECKOUT, PROGRAM, ROOT, shown_file

HELP = {"-h", "--help"}
EXERCISES: Rows = [
    ("-e 0", "communication tests of the machine"),
    ("-e 1", "DDP: data loading, mixed precision"),
    ("-e 2 -- --mixed-precision", "DeepSpeed ZeRO: the cost of sharding"),
    ("-e 3 -n 2 -- --pp 2", "Megatron: tensor, pipeline parallel"),
    ("run -g 2 -- train.py", "your own training, no line changed"),
    ("observe -- bash train.sh", "your own command, in the job you have"),
]
EVERY_DAY: Rows = [
    ("-e 1 -n 2 --dry-run", "print the script, start nothing"),
    ("-e 1 -n 2 --plan", "memory, time and cost of a launch"),
    ("ls", "your runs: flags, step, largest loss"),
    ("watch last", "live: progress, who is slow or stuck"),
    ("report last", "where the time went; writes a page"),
    ("compare local-1 local-2", "differences between two runs"),
    ("lesson 1a", "a question, two runs, the answer"),
    ("cancel last", "stop a run and keep its traces"),
]
MORE: Rows = [
    ("help", "all commands"),
    ("help report", "one command: its flags, with examples"),
    ("--help", "all flags, with your site's defaults"),
]
OF_WORDS = {  # what `help` prints besides the pages of commands
    "faults": "harness.cli.launch.faults:faults_page",
    "numbers": "harness.cli.read.numbers:numbers_page",
    "agents": "harness.cli.help:agents_page",
}
OF_LAUNCH = "harness.cli.launch.launch:page"
WIDTH = 100
MOST_LEFT = 34  # characters of a flag with its value; of a longer one the text is on the next line
FEWEST_RIGHT = 30  # characters of a text beside a name


class HelpPage(NamedTuple):
    """usage: each way to write the command, without the program's name. flags: as typed, and what each does. exits:
    exit codes and their meaning. examples: command lines, and what each does. docs: the document with more."""

    usage: Sequence[str]
    about: str
    arguments: Rows = ()
    flags: Rows = ()
    exits: Rows = ()
    examples: Rows = ()
    docs: str = ""


def asked_page(argv: Sequence[str]) -> str | None:
    """The page that the words ask for, if any. Raises RequestError: help of a command that there is not."""
    first, rest = (argv[0] if argv else ""), list(argv[1:])
    named = bool(rest) and not rest[0].startswith("-")
    if not argv:
        return first_screen()
    if first.startswith("-") and "--version" in argv:
        return version()
    if first == "help" or first in HELP:
        if named:
            return resolve_name(OF_WORDS[rest[0]])(rest[1:]) if rest[0] in OF_WORDS else command_page(rest)
        return commands_page() if first == "help" and not rest else str(resolve_name(OF_LAUNCH)(rest))
    return command_page(argv) if first in COMMANDS and HELP & set(rest) else None


def first_screen() -> str:
    titled = {"The exercises": EXERCISES, "Every day": EVERY_DAY, "More": MORE}
    left = max(len(words) for rows in titled.values() for words, _ in rows)
    parts = [
        "\n".join([f"{title}:", *(f"  {COMMAND} {words:<{left}}  {text}" for words, text in rows)])
        for title, rows in titled.items()
    ]
    return "\n\n".join([f"{PROGRAM} trains, profiles, and reports where the time went.", *parts])


def commands_page() -> str:
    """All commands, by what a user does."""
    left = max(map(len, COMMANDS))
    groups = []
    for title in GROUPS:
        rows = [(f"{name:<{left}}", entry.help) for name, entry in COMMANDS.items() if entry.group == title]
        groups += ["\n".join(section(title, rows))] if rows else []
    first = f"Usage: {PROGRAM} COMMAND [RUN] [FLAGS]\n       {PROGRAM} help COMMAND: the page of one command"
    last = (
        "RUN: a job id, a name, a path, or `last`.\n"
        f"{COMMAND} --help lists all flags of a launch, help faults what --fault injects,\n"
        "help numbers every field of a summary, help agents what a program needs that runs these commands.\n"
        f"{COMMAND} --version prints the version, the commit and the folder."
    )
    return "\n\n".join([first, *groups, last])


def command_page(words: Sequence[str]) -> str:
    """The page of a command, or of one of its parts. Raises RequestError: there is no such command."""
    name = words[0]
    if name not in COMMANDS:
        hint = nearest_or_list(name, (*COMMANDS, *OF_WORDS), f"{COMMAND} help lists all commands")
        raise RequestError(f"help: there is no command {name!r}{hint}")
    entry = COMMANDS[name]
    if entry.reads_arguments:
        page = resolve_name(f"{entry.function.partition(':')[0]}:page")
        return as_text(page) if isinstance(page, HelpPage) else str(page(list(words)))
    return as_text(of_function(name, resolve_name(entry.function), entry.exits, entry.examples, entry.docs))


def page_width() -> int:
    return min(columns(WIDTH), WIDTH)


def as_text(page: HelpPage) -> str:
    usage = [each for words in page.usage for each in _usage(words, is_first=words == page.usage[0])]
    about = wrap(page.about, page_width(), break_on_hyphens=False)
    examples = [(f"{COMMAND} {words}", text) for words, text in page.examples]
    titled = {"Arguments": page.arguments, "Flags": page.flags, "Exit codes": page.exits, "Examples": examples}
    parts = ["\n".join(usage), "\n".join(about)]
    parts += ["\n".join(section(title, rows)) for title, rows in titled.items() if rows]
    return "\n\n".join([*parts, *([f"More: {shown_file(page.docs)}"] if page.docs else [])])


def _usage(words: str, is_first: bool) -> list[str]:
    before = "Usage: " if is_first else " " * len("Usage: ")
    indent = " " * (len(before) + 2)
    return wrap(f"{before}{PROGRAM} {words}", page_width(), subsequent_indent=indent, break_on_hyphens=False)


def section(title: str, rows: Rows, left: int = 0) -> Iterator[str]:
    """A title, and below it each name with its text. left: characters of the names; 0: as the longest needs."""
    wide = left or max(map(len, dict(rows)), default=0)
    yield f"{title}:"
    for name, text in rows:
        yield from line(name, text, wide if title == "Examples" else min(wide, MOST_LEFT))


def line(name: str, text: str, left: int = MOST_LEFT) -> Iterator[str]:
    """A name and its text, wrapped beside it; below it where the name is too long or too little room is left."""
    is_wide = page_width() - left > FEWEST_RIGHT
    indent = " " * (left + 4 if is_wide else 6)
    texts = wrap(text, page_width() - len(indent), break_on_hyphens=False)
    beside = texts.pop(0) if texts and is_wide and len(name) <= left else ""
    yield f"  {name:<{left}}  {beside}".rstrip()
    yield from (indent + each for each in texts)


def of_function(
    name: str, function: Callable[..., object], exits: Rows = (), examples: Rows = (), docs: str = ""
) -> HelpPage:
    """The page of a command from its function's parameters and docstring."""
    parameters = parameters_of(function).values()
    flags = flag_rows(each for each in parameters if each.is_flag)
    words = [each.names[0] for each in parameters if not each.is_flag]
    # Where all of the name is in brackets, they say on the line of usage that it may be left out.
    arguments = [
        (each.names[0].strip("[]") if each.names[0].startswith("[") else each.names[0], each.help)
        for each in parameters
        if not each.is_flag
    ]
    about = " ".join(inspect.cleandoc(function.__doc__ or "").split())
    usage = [" ".join([name, *words, *(["[FLAGS]"] if flags else [])])]
    return HelpPage(usage, about, arguments, flags, exits, examples, docs)


def flag_rows(flags: Iterable[DeclaredParameter]) -> Rows:
    """A row for each flag: its spellings with what it takes, and its text."""
    return [(f"{each.spelling} {each.takes}".rstrip(), each.help) for each in flags]


def agents_page(words: Sequence[str]) -> str:
    """Which command answers which question, for a program that runs them."""
    if words:
        raise RequestError(f"help agents: {words[0]}: takes no more words: drop it")
    return (ROOT / "docs" / "SKILL.md").read_text(encoding="utf-8").rstrip()


def version() -> str:
    lines = [f"{PROGRAM} {_number()}"]
    if IN_CHECKOUT:
        from harness.common.system.programs import git_state

        state = git_state()
        changed = ", with changes that are not committed" if state["dirty"] else ""
        lines += [f"commit {state['commit']}{changed}"] if state["commit"] else []
    return "\n".join([*lines, f"installed in {ROOT}"])


def _number() -> str:
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # the environment of a checkout has the dependencies alone
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        return text.partition('\nversion = "')[2].partition('"')[0]
