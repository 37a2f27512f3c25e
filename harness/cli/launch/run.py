"""`slurm.sh run … -- SCRIPT …`: launch a training of the user's own; `slurm.sh run RUN`: a run again, as a new run."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from harness.cli.launch.launch import Behaviour, go, launch_argv, page
from harness.cli.launch.untrusted import YesOption, may_launch, show_request, source_of
from harness.cli.options import JsonOption
from harness.cli.parser import DRY_RUN, RUN, by_spelling, parameters_of, run_command, split_launch
from harness.common.errors import RequestError
from harness.common.paths import COMMAND, PROGRAM
from harness.common.run_folder.job_folder import BACKEND
from harness.experiment.own import HOW_TO_TYPE
from harness.experiment.parse import command_of
from harness.run import find_run
from harness.run.record import RunRecord
from harness.site.detection import SiteChoice

__all__ = ["again", "page", "rerun", "run"]


def run(arguments: list[str]) -> int:
    """Launch what the words name; returns the exit code."""
    switches = by_spelling(parameters_of(rerun).values())
    first = next((word for word in arguments if word not in switches), "-")
    if split_launch(arguments, is_run=True).script is not None:
        return launch_argv(arguments, is_run=True)
    if first.startswith("-") or first.endswith(".py"):
        raise RequestError(f"run: name your script after --, as in {HOW_TO_TYPE}, or a run to launch again: run last")
    return run_command(RUN, rerun, arguments)


def rerun(
    run: Annotated[str, typer.Argument(metavar="RUN", help="job id, name, path of a run or its run.json, or last")],
    *,
    plan: Annotated[bool, typer.Option("--plan", help="print what it will need and cost, start nothing")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait for the end, then report")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="as --wait, and show the output")] = False,
    yes: YesOption = False,
    json_: JsonOption = False,
) -> int:
    """Launch the experiment of a run.json again, at the same site, as a new run."""
    found = find_run(run)
    record = found.record
    if record.backend == BACKEND:
        typed = f"{COMMAND} {shlex.join(record.shown_command[1:])}"
        raise RequestError(
            f"run: {record.job_id} was observed in a job of yours, not launched; type it again:\n  {typed}"
        )
    source = source_of(found, record)
    if dry_run:
        show_request(source, [record.experiment], record.site)
    elif not plan and not may_launch(source, [record.experiment], record.site, yes=yes):
        return 0
    choice = SiteChoice(site=record.site, reason=f"run.json of {record.job_id}")
    behaviour = Behaviour(plan=plan, dry_run=dry_run, wait=wait, follow=follow, json=json_)
    return go(record.experiment, choice, behaviour, again(record))


def again(record: RunRecord) -> list[str]:
    """The command that asks for the same run: as it was typed, unless a lesson, a program or `run RUN` started it."""
    first = "".join(record.command[1:2])
    typed = first.startswith("-") or (first == RUN and "--" in record.command)
    asked = command_of(record.experiment, record.site.name, record.site.defaults)
    return record.command if typed else [PROGRAM, *(asked or [RUN, record.job_id])]
