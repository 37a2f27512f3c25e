"""What `help` prints besides Typer's pages: the first screen, texts by their word, the version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pkgutil import resolve_name
from textwrap import wrap

from harness.cli.commands import LAUNCH, CommandEntry, Rows
from harness.cli.terminal import columns
from harness.common.errors import RequestError
from harness.common.paths import COMMAND, DISTRIBUTION, IN_CHECKOUT, ROOT, shown_file

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
    (f"help {LAUNCH}", "all flags, with your site's defaults"),
]
OF_WORDS = {  # what `help` prints besides the pages of commands
    "faults": "harness.cli.launch.faults:faults_page",
    "numbers": "harness.cli.read.numbers:numbers_page",
    "agents": "harness.cli.help:agents_page",
}
WIDTH = 100
MOST_LEFT = 34  # characters of a name; of a longer one the text is on the next line
FEWEST_RIGHT = 30  # characters of a text beside a name


def asked_text(argv: Sequence[str]) -> str | None:
    """The text that `help WORD` asks for; None: it is the page of a command."""
    if list(argv[:1]) != ["help"] or argv[1:2] == [] or argv[1] not in OF_WORDS:
        return None
    text_of: Callable[[Sequence[str]], str] = resolve_name(OF_WORDS[argv[1]])
    return text_of(argv[2:])


def page_end(entry: CommandEntry) -> str:
    """What comes after Typer's part of a page: exit codes, examples, the document."""
    examples = [(f"{COMMAND} {words}", text) for words, text in entry.examples]
    titled = {"Exit codes": entry.exits, "Examples": examples}
    parts = ["\n".join(section(title, rows)) for title, rows in titled.items() if rows]
    return "\n\n".join([*parts, *([f"More: {shown_file(entry.docs)}"] if entry.docs else [])])


def first_screen() -> str:
    titled = {"The exercises": EXERCISES, "Every day": EVERY_DAY, "More": MORE}
    left = max(len(words) for rows in titled.values() for words, _ in rows)
    parts = [
        "\n".join([f"{title}:", *(f"  {COMMAND} {words:<{left}}  {text}" for words, text in rows)])
        for title, rows in titled.items()
    ]
    return "\n\n".join([f"{DISTRIBUTION} trains, profiles, and reports where the time went.", *parts])


def page_width() -> int:
    return min(columns(WIDTH), WIDTH)


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


def agents_page(words: Sequence[str]) -> str:
    """Which command answers which question, for a program that runs them."""
    if words:
        raise RequestError(f"help agents: {words[0]}: takes no more words: drop it")
    return (ROOT / "docs" / "SKILL.md").read_text(encoding="utf-8").rstrip()


def version_text() -> str:
    lines = [f"{DISTRIBUTION} {_number()}"]
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
