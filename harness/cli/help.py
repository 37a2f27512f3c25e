"""The first screen, all commands, the page of one, and the version. Of the commands it loads only the one asked for."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pkgutil import resolve_name

from harness.cli.command_line import Words
from harness.cli.commands import COMMANDS, GROUPS
from harness.cli.page import HelpPage, Rows, as_text, of_function, section
from harness.common.errors import RequestError, nearest_or_list
from harness.common.paths import COMMAND, DISTRIBUTION, IN_CHECKOUT, PROGRAM, ROOT

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
_DASHES = {
    "\u2010": "a typographic hyphen", "\u2011": "a typographic hyphen", "\u2012": "a figure dash",
    "\u2013": "an en dash", "\u2014": "an em dash", "\u2015": "a horizontal bar", "\u2212": "a minus sign",
    "\ufe58": "an em dash", "\ufe63": "a typographic hyphen", "\uff0d": "a typographic hyphen",
}  # fmt: skip
_DASH = f"[{''.join(_DASHES)}]"
_FLAG = re.compile(rf"(?P<before>^|\s)-?{_DASH}[-{_DASH[1:]}*(?P<name>\S*)")


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
        return commands_page() if first == "help" and not rest else command_page(["run", *rest])
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
        f"{PROGRAM} --help lists all flags of a launch, help faults what --fault injects,\n"
        "help numbers every field of a summary, help agents what a program needs that runs these commands.\n"
        f"{PROGRAM} --version prints the version, the commit and the folder."
    )
    return "\n\n".join([first, *groups, last])


def command_page(words: Sequence[str]) -> str:
    """The page of a command, or of one of its parts. Raises RequestError: there is no such command."""
    name = words[0]
    if name not in COMMANDS:
        hint = nearest_or_list(name, (*COMMANDS, *OF_WORDS), f"{PROGRAM} help lists all commands")
        raise RequestError(f"help: there is no command {name!r}{hint}")
    entry = COMMANDS[name]
    if entry.reads_arguments:
        page = resolve_name(f"{entry.function.partition(':')[0]}:page")
        return as_text(page) if isinstance(page, HelpPage) else str(page(list(words)))
    return as_text(of_function(name, resolve_name(entry.function), entry.exits, entry.examples, entry.docs))


def agents_page(words: Sequence[str]) -> str:
    """Which command answers which question, for a program that runs them."""
    if words:
        raise RequestError(f"help agents: {words[0]}: takes no more words: drop it")
    return (ROOT / "docs" / "SKILL.md").read_text(encoding="utf-8").rstrip()


def version() -> str:
    lines = [f"{PROGRAM} {_number()}"]
    if IN_CHECKOUT:
        from harness.common.programs import git_state

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
