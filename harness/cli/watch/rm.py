"""`slurm.sh rm`: delete runs. It asks first, and refuses what somebody still needs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from harness.cli.launch.untrusted import confirmed
from harness.cli.rooms import REFERENCE_OF_RUN, of_room
from harness.cli.watch.ls import rows_of, table
from harness.cli.watch.status import RUN_HELP
from harness.common.display.format import amount
from harness.common.display.text import how_many
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND
from harness.common.system.users import owner_of
from harness.launch.backends.protocol import PolledState
from harness.launch.poll import look_at
from harness.run import Run, delete_run, find_run
from harness.run.record import FINAL


def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN [RUN…]", help=RUN_HELP)],
    yes: Annotated[bool, typer.Option("--yes", help="delete without asking")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="delete also if it is not known whether a run has ended")
    ] = False,
) -> int:
    """Delete runs with their traces, pages and logs. It refuses a run that has not ended, and a run of a stored
    reference whose traces are nowhere else."""
    found = [*{run.path: run for run in map(find_run, runs)}.values()]
    if refused := [why for run in found if (why := _refusal(run, force))]:
        raise RequestError("\n".join(refused))
    rows = rows_of(found)
    what = f"{how_many(len(found), 'run')} ({amount(sum(row['size_bytes'] for row in rows))})"
    print("\n".join(table(rows, ("id", "asked", "age", "size"))[0]), file=sys.stderr)
    for run in found if confirmed(f"delete {what}", yes, "deleted") else ():
        delete_run(run)
        print(f"deleted {run.name}")
    return 0


def _refusal(run: Run, force: bool) -> str:
    """Why the run stays, in a sentence; empty if it may be deleted."""
    name = run.known_record.job_id if run.known_record else run.name
    owner = owner_of(run.record_file)
    if owner is not None and os.geteuid() != 0:
        return f"{name} belongs to {owner}: only {owner} can delete it"
    try:
        state, why, *_ = look_at(run)
    except WorkError as error:  # its record, or its backend, is not here
        state, why, *_ = PolledState("unknown", str(error))
    if state == "unknown" and not force:
        return f"{name}: whether it has ended is not known ({why}): --force deletes it all the same"
    if state not in (*FINAL, "unknown"):
        return f"{name} is {state}: end it first: {COMMAND} cancel {name}"
    reference_of_run = of_room(REFERENCE_OF_RUN)
    if reference_of_run is not None and (reference := reference_of_run(run)):
        return f"{name} is a run of the reference {reference.name}, and there is no copy of it: {reference} needs it"
    return ""
