"""The help page of a command, in one style, however the command reads its words. Knows no command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from textwrap import wrap
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from harness.cli.terminal import columns
from harness.common.paths import COMMAND, PROGRAM, shown_file

WIDTH = 100
MOST_LEFT = 34  # characters of a flag with its value; of a longer one the text is on the next line
FEWEST_RIGHT = 30  # characters of a text beside a name

Rows = Sequence[tuple[str, str]]


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
    """The page of a command whose function Typer reads: from the function's signature and docstring."""
    from typer.models import OptionInfo

    arguments, flags, words = [], [], []
    hints = get_type_hints(function, include_extras=True)
    for field, parameter in inspect.signature(function).parameters.items():
        kind, told = get_args(hints[field])
        default = parameter.default
        if isinstance(told, OptionInfo):
            flags.append(_flag(field, kind, told, default))
        else:
            given = _shown(default) if told.show_default else None
            words.append(told.metavar)
            bare = told.metavar.strip("[]") if told.metavar.startswith("[") else told.metavar
            arguments.append((bare, _with_default(told.help or "", given)))
    about = " ".join(inspect.cleandoc(function.__doc__ or "").split())
    usage = [" ".join([name, *words, *(["[FLAGS]"] if flags else [])])]
    return HelpPage(usage, about, arguments, flags, exits, examples, docs)


@cache
def flags_of(function: Callable[..., object]) -> dict[str, bool]:
    """Each spelling of the flags of a command's function, and whether it takes one value, neither none nor several."""
    from typer.models import OptionInfo

    found: dict[str, bool] = {}
    for field, hint in get_type_hints(function, include_extras=True).items():
        kind, told = get_args(hint) if field != "return" else (None, None)
        is_list = any(get_origin(each) is list for each in (kind, *get_args(kind)))
        if isinstance(told, OptionInfo):
            name, _, value = _flag(field, kind, told, None)[0].partition(" ")
            found |= dict.fromkeys(name.split("/"), bool(value) and not is_list)
    return found


def _flag(field: str, kind: Any, told: Any, default: object) -> tuple[str, str]:
    # Typer keeps the first of the names as the default of an annotated option.
    spelled = [each for each in (str(told.default), *(told.param_decls or ())) if each.startswith("-")]
    name = "/".join(spelled) or f"--{field.replace('_', '-')}"
    if bool in (kind, *get_args(kind)) or told.count:
        return name, told.help or ""
    return f"{name} {told.metavar or _takes(kind)}", _with_default(told.help or "", _shown(default))


def _takes(kind: Any) -> str:
    """What stands for the value of a flag: its choices, or N for a number."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return "N" if {int, float} & {kind, *get_args(kind)} else "NAME"


def _shown(default: object) -> str | None:
    if default is inspect.Parameter.empty or default is None or isinstance(default, bool):
        return None
    return str(default)


def _with_default(text: str, default: str | None) -> str:
    return text if default is None else f"{text} [{default}]"


def markdown_table(heads: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table. heads: those of the columns, with `|` between them."""
    columns = heads.count("|") + 1
    return "\n".join([f"| {heads} |", "|---" * columns + "|", *(f"| {' | '.join(map(str, row))} |" for row in rows)])
