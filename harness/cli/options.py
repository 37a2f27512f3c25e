"""Options that several commands share, each declared once, and what the shell completes for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from harness.common.errors import RequestError


def run_names(incomplete: str) -> list[str]:
    """The runs here, by job id; `last` first."""
    from harness.run import all_runs

    return [name for name in ("last", *(run.job_id for run in all_runs())) if name.startswith(incomplete)]


def named_sites(incomplete: str) -> list[str]:
    from harness.site.site import site_names

    return [name for name in site_names() if name.startswith(incomplete)]


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="print the script and its warnings, start nothing")]
JsonOption = Annotated[bool, typer.Option("--json", help="print machine-readable JSON")]


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How a launch behaves: options of each command that starts one. Raises RequestError: two do not go together."""

    plan: Annotated[
        bool,
        typer.Option("--plan", help="print the memory, time and cost of the launch with their sources, start nothing"),
    ] = False
    dry_run: DryRunOption = False
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end, then report")] = False
    follow: Annotated[bool, typer.Option("--follow", help="as --wait, and show the output meanwhile")] = False
    json: JsonOption = False

    def __post_init__(self) -> None:
        if self.plan and self.dry_run:
            raise RequestError("--plan and --dry-run exclude each other: drop one")
