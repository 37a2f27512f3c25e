"""`slurm.sh reference check`: runs, or another reference, compared with a stored one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption

if TYPE_CHECKING:
    from harness.study.reference.check import ReferenceChecked

EXITS = [("0", "the same"), ("1", "moved or damaged"), ("2", "wrong request"), ("3", "cannot tell")]


def command(
    new: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN…|NAME]", help="runs, or a reference that was recorded anew; default: last"
        ),
    ] = None,
    *,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="NAME", help="the stored reference; default: the one with the same request"
        ),
    ] = None,
    traces: Annotated[
        bool,
        typer.Option("--traces", help="compare the checksums of the traces; default: their sizes"),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """What changed since a reference was recorded, and the likely reason."""
    from harness.study.reference.request import checked_reference, checked_runs, reference_named

    arguments = new or ["last"]
    folder = reference_named(arguments[0]) if len(arguments) == 1 else None
    found = checked_runs(arguments, against) if folder is None else checked_reference(folder, against, traces)
    return _answer(found, as_json)


def _answer(found: ReferenceChecked, as_json: bool) -> int:
    from harness.cli.screen import columns
    from harness.cli.study.reference_text import lines_of
    from harness.report.tables.screen import WIDTH
    from harness.study.reference.reasons import likely_reasons

    reasons = likely_reasons(found)
    if as_json:
        print(json.dumps(found.model_dump(mode="json") | {"likely": reasons}, indent=1))
    else:
        print("\n".join(lines_of(found, reasons, columns(WIDTH))))
    return found.exit_code
