"""`slurm.sh observe -- COMMAND`: the user's own command in the job that there is, observed; three lines on a job for
its log or mail."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from harness.cli.words import OBSERVE, OF_DEEPSPEED
from harness.common.display.printable import printable
from harness.common.errors import RequestError, WorkError
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
    if asked["summary"] is not None:
        raise RequestError("observe --summary takes no command: leave out --")
    if command[0].endswith(".py") or command[0] == "-m":  # torchrun and others give a script to the Python they run in
        command = [sys.executable, "-u", *command[:1], *of_deepspeed, *command[1:]]
    elif of_deepspeed:
        command += of_deepspeed
    if asked["steps"] and asked["profiler"] == "none":
        raise RequestError("observe: --steps is for --profiler torch: add it, or leave it out")
    from harness.launch.observed import run

    request = RunRequest(
        command=command,
        typed=[PROGRAM, OBSERVE, *words],
        start_in=_folder(),
        profiler=asked["profiler"],
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
    on_hang: Annotated[
        Literal["report", "stop"],
        typer.Option(help="what to do if no rank makes progress; stop: as soon as no rank works"),
    ] = "report",
    no_report: Annotated[bool, typer.Option("--no-report", help="print no report after the command")] = False,
    summary: Annotated[
        str | None,
        typer.Option(metavar="JOBID", help="print three lines on a job, for the end of its log or for a mail"),
    ] = None,
) -> int:
    """One word before a command of yours, in your own sbatch script, in salloc, in a container or on a workstation: it
    starts as it is and ends as it ends. Its trainings in Python become runs: where the time goes, at which line, what
    is stuck. No launcher and no flag of the training changes."""
    if command:
        word = printable(command[0])
        hint = f"a command stands after --, as in {COMMAND} observe -- {word} …"
        raise RequestError(f"observe: unexpected word {word!r}: {hint}")
    if summary is None:
        raise RequestError(_NO_COMMAND)
    print("\n".join(summary_lines(summary)))
    return 0


# -- for sites ---------------------------------------------------------------------------------------------------------


def summary_lines(job_id: str) -> list[str]:
    """Three lines on the run of a job: what ran and how it ended, where its time went, and what to try; of several, the
    worst state and a line for each. Raises RequestError: the job has no run. WorkError: its run tells nothing."""
    from harness.cli.watch.of_job import of_job
    from harness.common.errors import HarnessError
    from harness.explain.answer import answer
    from harness.measure.request import ReportRequest as Measuring
    from harness.measure.request import measure_request
    from harness.report.first_screen import heading
    from harness.run import find_run

    if job_id == os.environ.get("SLURM_JOB_ID"):  # of an array's task it is a number that its user never sees
        job_id = job_folder.slurm_job(os.environ) or job_id
    run = find_run(job_id)
    if several := of_job(run, job_id):
        return several
    try:
        (summary,) = measure_request(Measuring(tokens=[str(run.path)], window="steps")).summaries
    except HarnessError as error:
        raise WorkError(f"{run.name}: {error}") from None
    said = answer(summary)
    status = run.status()
    ended = "" if status is None else f": {status.state}" + (f", {status.why}" if status.why else "")
    lines = [f"{heading(summary)}{ended}", " ".join([*said.doubts[:1], *said.sentences, *said.where[:1]])]
    if said.attempt is not None and said.attempt.command:
        lines.append(f"Try: {said.attempt.command}")
    else:
        lines.append(f"More: {COMMAND} report {run.job_id}")
    return [printable(line) for line in lines]
