"""`slurm.sh reference`: its parts by name; each has a module of its own."""

from __future__ import annotations

from importlib import import_module

from harness.cli.commands import run_command
from harness.cli.page import Page, as_text, of_function
from harness.common.errors import RequestError, nearest_or_list

_DOCS = "docs/references.md"
PARTS = {
    "record": (
        "harness.cli.study.reference_record",
        "[--site S] [--name N]: run a whole list of variants, and store it",
    ),
    "check": (
        "harness.cli.study.reference_check",
        "[RUN|NAME]: what changed since a reference was recorded, and the likely reason",
    ),
    "show": ("harness.cli.study.reference_show", "[NAME]: all references, or the variants of one"),
    "package": (
        "harness.cli.study.reference_package",
        "NAME -o FILE.tar.gz: an archive for students, to open offline",
    ),
}


def reference(arguments: list[str]) -> int:
    """One of the parts; returns its exit code.

    Raises:
        RequestError: there is no such part.
    """
    if not arguments:
        print(page(arguments))
        return 0
    if arguments[0] not in PARTS:
        raise RequestError(_no_part(arguments[0]))
    module, _ = PARTS[arguments[0]]
    if arguments[0] == "record":  # it takes the flags of a launch
        from harness.cli.study.reference_record import record

        return record(arguments[1:])
    return run_command(f"reference {arguments[0]}", import_module(module).command, arguments[1:])


def page(arguments: list[str]) -> str:
    """The help page, or that of the part that is the second word. Raises RequestError: there is no such part."""
    part = arguments[1] if len(arguments) > 1 else ""
    if part == "record":
        from harness.cli.study.reference_record import page as of_record

        return of_record()
    if part in PARTS:
        module = import_module(PARTS[part][0])
        exits = getattr(module, "EXITS", ())
        return as_text(of_function(f"reference {part}", module.command, exits, docs=_DOCS))
    if part and not part.startswith("-"):
        raise RequestError(_no_part(part))
    return as_text(
        Page(
            usage=[
                *(f"reference {name} {text}" for name, (_, text) in PARTS.items()),
                "lesson 2a --reference NAME: the answer of a lesson from the runs of a reference",
            ],
            about="A reference is a list of variants that were run and stored.",
            examples=[
                ("reference record --dry-run", "the runs that would be made"),
                ("reference check last", "compare a run with the stored runs of the same request"),
            ],
            docs=_DOCS,
        )
    )


def _no_part(word: str) -> str:
    hint = nearest_or_list(word, PARTS, "slurm.sh help reference lists all")
    return f"reference: there is no part {word!r}{hint}"
