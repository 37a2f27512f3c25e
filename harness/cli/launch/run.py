"""`slurm.sh run … -- SCRIPT …`: launch a training of the user's own; `slurm.sh run RUN`: a run again, as a new run."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from harness.cli.launch.launch import go, launch_line
from harness.cli.launch.untrusted import YesOption, may_launch, show_request, source_of
from harness.cli.options import Behaviour, run_names
from harness.cli.words import RUN, CommandLine
from harness.common.errors import RequestError
from harness.common.paths import COMMAND, PROGRAM
from harness.common.run_folder.job_folder import BACKEND
from harness.experiment.own import HOW_TO_TYPE
from harness.experiment.parse import command_of
from harness.run import find_run
from harness.run.record import RunRecord
from harness.site.detection import SiteChoice

__all__ = ["again", "run"]


def run(
    line: CommandLine,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            autocompletion=run_names,
            help="a run to launch again, as a new run: its job id, name, path or run.json, or last",
        ),
    ] = None,
    *,
    behaviour: Behaviour,
    yes: YesOption = False,
    whole: Annotated[bool, typer.Option("--all", help="with --help: also the rarely used flags")] = False,
) -> int:
    """Launch your own training, run [FLAGS] -- SCRIPT|-m MODULE|COMMAND …: no line of it is changed, it gets as many
    ranks as GPUs, and some of its steps are recorded. Or launch a run again."""
    if line.script is not None:
        if yes:
            raise RequestError("run: --yes is for a run that is launched again: drop it")
        return launch_line(line if name is None else line._replace(words=[name, *line.words]), behaviour, [RUN])
    if name is None or name.endswith(".py"):
        raise RequestError(f"run: name your script after --, as in {HOW_TO_TYPE}, or a run to launch again: run last")
    if wrong := [*line.complaints, *line.unknown, *line.given, *line.words]:
        raise RequestError(f"run: {wrong[0]} does not go with a run to launch again ({COMMAND} help run)")
    return _again(name, behaviour, yes)


def _again(name: str, behaviour: Behaviour, yes: bool) -> int:
    """Launch the experiment of a run.json again, at the same site, as a new run."""
    found = find_run(name)
    record = found.record
    if record.backend == BACKEND:
        typed = f"{COMMAND} {shlex.join(record.shown_command[1:])}"
        raise RequestError(
            f"run: {record.job_id} was observed in a job of yours, not launched; type it again:\n  {typed}"
        )
    source = source_of(found, record)
    if behaviour.dry_run:
        show_request(source, [record.experiment], record.site)
    elif not behaviour.plan and not may_launch(source, [record.experiment], record.site, yes=yes):
        return 0
    choice = SiteChoice(site=record.site, reason=f"run.json of {record.job_id}")
    return go(record.experiment, choice, behaviour, again(record))


def again(record: RunRecord) -> list[str]:
    """The command that asks for the same run: as it was typed, unless a lesson, a program or `run RUN` started it."""
    first = "".join(record.command[1:2])
    typed = first.startswith("-") or (first == RUN and "--" in record.command)
    asked = command_of(record.experiment, record.site.name, record.site.defaults)
    return record.command if typed else [PROGRAM, *(asked or [RUN, record.job_id])]
