"""Starts a launch from a command: says what the shell brings to it, and its plan, if the room `plan` is there."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from harness.cli.rooms import PLAN_OF_LAUNCH, of_room
from harness.common.paths import PROGRAM, typed_words

if TYPE_CHECKING:
    from harness.launch.submit import PreparedLaunch
    from harness.run import Run


class Announced(NamedTuple):
    """What the plan warns of, and the files in which the run keeps it."""

    warnings: list[str]
    files: dict[str, str]


def announced(prepared: PreparedLaunch, quiet: bool = False) -> Announced:
    """Print what the shell brings, and, unless `quiet`, the short form of the plan."""
    from harness.launch.before.from_shell import what_the_shell_brings

    for line in what_the_shell_brings(os.environ, prepared.job):
        print(line, file=sys.stderr)
    plan = of_room(PLAN_OF_LAUNCH)
    return Announced([], {}) if plan is None else Announced(*plan(prepared, quiet))


def start(prepared: PreparedLaunch, command: list[str], files: dict[str, str]) -> Run:
    """Start it; returns its run, which then exists on disk. command: as typed. files: for the run to keep."""
    from harness.launch.submit import Start, submit

    return submit(Start(prepared, command, None, files))


def start_announced(prepared: PreparedLaunch, typed: str, *, hidden: bool = False) -> Run:
    """Start a launch, with its command, its plan and what that warns of printed. typed: the command; hidden: it is not
    printed."""
    print("" if hidden else f"\nrunning: {typed}", file=sys.stderr)
    told = announced(prepared)
    for warning in told.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    run = start(prepared, [PROGRAM, *typed_words(typed)], told.files)
    print(f"{run.job_id}: {run.path}", file=sys.stderr)
    return run
