"""`slurm.sh reference`: its parts by name; each has a module of its own."""

from __future__ import annotations

from importlib import import_module

from harness.cli.commands import run_command
from harness.common.errors import RequestError, nearest

PARTS = {
    "record": (
        "harness.cli.study.reference_record",
        "[--site S] [--name N]: run a whole list of variants, and keep it",
    ),
    "check": (
        "harness.cli.study.reference_check",
        "[RUN|NAME]: what moved since a reference was recorded, and likely why",
    ),
    "show": ("harness.cli.study.reference_show", "[NAME]: the references there are, or one's variants"),
    "package": (
        "harness.cli.study.reference_package",
        "NAME -o FILE.tar.gz: an archive for students, to open offline",
    ),
}


def reference(words: list[str]) -> int:
    """One of the parts; returns its exit code.

    Raises:
        RequestError: there is no such part.
    """
    if not words or {"-h", "--help"} & {words[0]}:
        print(_help())
        return 0
    if words[0] not in PARTS:
        near = nearest(words[0], PARTS)
        hint = f": did you mean {near}?" if near else f": there are {', '.join(PARTS)}"
        raise RequestError(f"reference: there is no part {words[0]!r}{hint}")
    module, _ = PARTS[words[0]]
    if words[0] == "record":  # it takes the flags of a launch
        from harness.cli.study.reference_record import record

        return record(words[1:])
    return run_command(f"reference {words[0]}", import_module(module).command, words[1:])


def _help() -> str:
    first, *others = (f"slurm.sh reference {name} {text}" for name, (_, text) in PARTS.items())
    return "\n".join(
        [
            f"Usage: {first}",
            *(f"       {other}" for other in others),
            "       slurm.sh lesson 2a --reference NAME: a lesson answered from a reference's runs",
            "",
            "A reference is a list of variants that were run and kept; docs/references.md.",
        ]
    )
