"""`slurm.sh observe -- COMMAND`: the user's own command in the job that there is, observed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from harness.cli.words import OBSERVE, OF_DEEPSPEED
from harness.common.display.printable import printable
from harness.common.errors import RequestError
from harness.common.paths import COMMAND, PROGRAM
from harness.common.run_folder import job_folder
from harness.common.run_folder.job_folder import RunRequest

MOST_STEPS = 10_000
_NO_COMMAND = f"observe: name a command after --, as in {COMMAND} observe -- torchrun train.py"


def become_command(argv: Sequence[str]) -> NoReturn:
    """Start the user's command. Raises RequestError: a flag before it is wrong."""
    from harness.cli.command import values_of

    of_deepspeed = [argv[0]] if OF_DEEPSPEED.fullmatch(argv[0]) else []
    words = list(argv[len(of_deepspeed) + 1 :])
    asked = values_of(OBSERVE, words)
    command = list(asked["command"] or ())
    if not command:
        raise RequestError(_NO_COMMAND)
    if words[words.index("--") + 1 :] != command:
        word = printable(command[0])
        hint = f"a command stands after --, as in {COMMAND} observe -- {word} …"
        raise RequestError(f"observe: unexpected word {word!r}: {hint}")
    if command[0].endswith(".py") or command[0] == "-m":  # torchrun and others give a script to the Python they run in
        command = [sys.executable, "-u", *command[:1], *of_deepspeed, *command[1:]]
    elif of_deepspeed:
        command += of_deepspeed
    if asked["steps"] and asked["profiler"] == "none":
        raise RequestError("observe: --steps is for --profiler torch: add it, or leave it out")
    if asked["memory"] and asked["profiler"] == "torch":
        raise RequestError("observe: --memory and --profiler torch would each be in the other's record: drop one")
    from harness.launch.observed import run

    request = RunRequest(
        command=command,
        typed=[PROGRAM, OBSERVE, *words],
        start_in=_folder(),
        profiler=asked["profiler"],
        memory=asked["memory"],
        window={**job_folder.WINDOW, **({"active": asked["steps"]} if asked["steps"] else {})},
        on_hang=asked["on_hang"],
    )
    run(request, reports=not asked["no_report"])


def _folder() -> str:
    """Where it was typed, by the name that the user knows it by."""
    named = os.environ.get("PWD", "")
    try:
        return named if Path(named).is_absolute() and Path(named).samefile(".") else str(Path.cwd())
    except OSError:  # the folder is gone
        return named or "/"


def observe(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="your command, with its own words")
    ] = None,
    *,
    profiler: Annotated[
        Literal["none", "torch"], typer.Option(help="torch: also record some steps, with torch.profiler")
    ] = "none",
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_STEPS,
            help="the recorded steps, after the first 7",
            show_default=str(job_folder.WINDOW["active"]),
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="record who holds memory, and the line that keeps more of it in each step")
    ] = False,
    on_hang: Annotated[
        Literal["report", "stop"],
        typer.Option(help="what to do if no rank makes progress; stop: as soon as no rank works"),
    ] = "report",
    no_report: Annotated[bool, typer.Option("--no-report", help="print no report after the command")] = False,
) -> int:
    """One word before a command of yours, in your own sbatch script, in salloc, in a container or on a workstation: it
    starts as it is and ends as it ends. Its trainings in Python become runs: where the time goes, at which line, what
    is stuck. No launcher and no flag of the training changes."""
    if command:
        word = printable(command[0])
        hint = f"a command stands after --, as in {COMMAND} observe -- {word} …"
        raise RequestError(f"observe: unexpected word {word!r}: {hint}")
    raise RequestError(_NO_COMMAND)
