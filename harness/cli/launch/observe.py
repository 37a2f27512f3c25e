"""`slurm.sh observe -- COMMAND`: the user's own command in the job that there is, observed; the lines of a module that
observes every training; three lines on a job for its log or mail."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness.cli.page import HelpPage
from harness.common import job_folder
from harness.common.errors import RequestError, WorkError, given_twice, nearest, nearest_or_list
from harness.common.job_folder import RunRequest
from harness.common.paths import COMMAND, PROGRAM, ROOT
from harness.common.printable import printable

OBSERVE = job_folder.WORD
PROFILERS = ("none", "torch", "nsys")
ON_HANG = ("report", "stop")
SHELLS = ("sh", "lua", "tcl")
MOST_STEPS = 10_000
_OF_DEEPSPEED = re.compile(r"--local[_-]rank=\d+")  # its launcher puts this word before the script's own
_VALUES = {"--profiler": PROFILERS, "--on-hang": ON_HANG, "--env": SHELLS, "--steps": None, "--summary": None}
_ALONE = ("--no-report",)

page = HelpPage(
    usage=["observe [FLAGS] -- COMMAND…", "observe --env [sh|lua|tcl]", "observe --summary JOBID"],
    about="One word before a command of yours, in your own sbatch script, in salloc, in a container or on a "
    "workstation: it starts as it is and ends as it ends. Its trainings in Python become runs: where the time goes, at "
    "which line, what is stuck. No launcher and no flag of the training changes.",
    flags=[
        ("--profiler none|torch|nsys", "also record some steps, with torch.profiler or nsys [none]"),
        ("--steps N", f"the recorded steps, after the first 7 [{job_folder.WINDOW['active']}]"),
        ("--on-hang report|stop", "what to do if no rank makes progress any more [report]"),
        ("--no-report", "print no report after the command"),
        ("--env sh|lua|tcl", "print the lines for a module: every training is observed, without a word [sh]"),
        ("--summary JOBID", "print three lines on a job, for the end of its log or for a mail"),
    ],
    exits=[("the command's", "or 128 and the signal that ended it"), ("2", "wrong request; nothing was started")],
    examples=[
        ("observe -- torchrun --nproc-per-node 4 train.py", "in your own script"),
        ("observe --profiler torch -- python train.py", "also record ten steps"),
        ("observe --summary 1234567", "in an epilog"),
    ],
    docs="docs/own.md",
)


def is_prefix(argv: Sequence[str]) -> bool:
    """Whether these arguments put the word before a command: then nothing of the environment may change before it."""
    words = argv[1:] if argv and _OF_DEEPSPEED.fullmatch(argv[0]) else argv
    if not words or words[0] != OBSERVE or "--" not in words:
        return False
    return not {"-h", "--help"} & set(words[: words.index("--")])


def become_command(argv: Sequence[str]) -> NoReturn:
    """Start the user's command. Raises RequestError: a flag before it is wrong."""
    of_deepspeed = [argv[0]] if _OF_DEEPSPEED.fullmatch(argv[0]) else []
    words = list(argv[len(of_deepspeed) + 1 :])
    at = words.index("--")
    given, command = _flags(words[:at]), words[at + 1 :]
    if not command:
        raise RequestError(f"observe: name a command after --, as in {COMMAND} observe -- torchrun train.py")
    for flag in ("--env", "--summary"):
        if flag in given:
            raise RequestError(f"observe {flag} takes no command: leave out --")
    if command[0].endswith(".py") or command[0] == "-m":  # torchrun and others give a script to the Python they run in
        command = [sys.executable, "-u", *command[:1], *of_deepspeed, *command[1:]]
    elif of_deepspeed:
        command += of_deepspeed
    steps = given.get("--steps", "")
    if steps and not (steps.isascii() and steps.isdecimal() and 1 <= int(steps) <= MOST_STEPS):
        raise RequestError(f"observe: --steps takes a whole number from 1 to {MOST_STEPS}, not {printable(steps)}")
    if steps and given.get("--profiler", "none") == "none":
        raise RequestError("observe: --steps is for --profiler torch or nsys: add one, or leave it out")
    from harness.launch.observed import run

    request = RunRequest(
        command=command,
        typed=[PROGRAM, OBSERVE, *words],
        start_in=_folder(),
        profiler=given.get("--profiler", "none"),
        window={**job_folder.WINDOW, **({"active": int(steps)} if steps else {})},
        on_hang=given.get("--on-hang", "report"),
    )
    run(request, reports="--no-report" not in given)


def _folder() -> str:
    """Where it was typed, by the name that the user knows it by."""
    named = os.environ.get("PWD", "")
    try:
        return named if Path(named).is_absolute() and Path(named).samefile(".") else str(Path.cwd())
    except OSError:  # the folder is gone
        return named or "/"


def observe(arguments: list[str]) -> int:
    """What `observe` prints without a command; returns the exit code."""
    given = _flags(arguments)
    if "--env" in given and len(given) == 1:
        print("\n".join(module_lines(given["--env"] or SHELLS[0])))
        return 0
    if "--summary" in given and len(given) == 1:
        print("\n".join(summary_lines(given["--summary"])))
        return 0
    raise RequestError(f"observe: name a command after --, as in {COMMAND} observe -- torchrun train.py")


def _flags(words: Sequence[str]) -> dict[str, str]:
    """The flags and their values. Raises RequestError."""
    given: dict[str, str] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if name in _ALONE and not equals:
            given[name] = ""
            continue
        if name not in _VALUES:
            if not word.startswith("-"):
                hint = f": a command stands after --, as in {COMMAND} observe -- {printable(word)} …"
                raise RequestError(f"observe: unexpected word {printable(word)!r}{hint}")
            raise RequestError(
                f"observe: unknown flag {printable(name)}"
                + nearest_or_list(name, (*_VALUES, *_ALONE), f"{PROGRAM} help observe lists all flags")
            )
        if not equals and waiting and not waiting[0].startswith("-"):
            value = waiting.pop(0)
        elif not equals and name != "--env":
            raise RequestError(f"observe: {name} requires an argument")
        if name in given and given[name] != value:
            raise RequestError(f"observe: {given_twice(name, printable(given[name]), printable(value))}")
        allowed = _VALUES[name]
        if allowed and value not in allowed and (value or equals):
            near = nearest(value, allowed)
            hint = f": did you mean {near}?" if near else ""
            raise RequestError(f"observe: {name} takes {', '.join(allowed)}, not {printable(value)!r}{hint}")
        given[name] = value
    return given


# -- for sites ---------------------------------------------------------------------------------------------------------


def module_lines(shell: str) -> list[str]:
    """The lines of a modulefile, by the language it is written in.

    >>> module_lines("lua")[1].startswith('prepend_path("PYTHONPATH", "')
    True
    """
    folder = str(ROOT / "harness/observe/site")
    values = {job_folder.VARIABLE: job_folder.BY_ITSELF, job_folder.PYTHON: sys.executable}
    off = f"for who does not want it: {job_folder.VARIABLE}={job_folder.OFF[0]}"
    if shell == "lua":
        head = [f"-- Observe every training in Python; {off}", f'prepend_path("PYTHONPATH", {_quoted(folder)})']
        return [*head, *(f'setenv("{name}", {_quoted(text)})' for name, text in values.items())]
    if shell == "tcl":
        head = [f"# Observe every training in Python; {off}", f"prepend-path PYTHONPATH {{{folder}}}"]
        return [*head, *(f"setenv {name} {{{text}}}" for name, text in values.items())]
    path = f"{shlex.quote(folder)}${{PYTHONPATH:+:$PYTHONPATH}}"
    head = [f"# Observe every training in Python; {off}", f"export PYTHONPATH={path}"]
    return [*head, *(f"export {name}={shlex.quote(text)}" for name, text in values.items())]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def summary_lines(job_id: str) -> list[str]:
    """Three lines on the runs of a job: what ran and how it ended, where its time went, and what to try. Raises
    RequestError: the job has no run. WorkError: its runs tell nothing."""
    from harness.common.errors import HarnessError
    from harness.explain.answer import answer
    from harness.measure.request import ReportRequest as Measuring
    from harness.measure.request import measure_request
    from harness.report.first_screen import heading
    from harness.run import find_run

    run = find_run(job_id)
    try:
        (summary,) = measure_request(Measuring(tokens=[str(run.path)], window="steps")).summaries
    except HarnessError as error:
        raise WorkError(f"{run.name}: {error}") from None
    said = answer(summary)
    status = run.status()
    ended = "" if status is None else f": {status.state}" + (f", {status.why}" if status.why else "")
    lines = [f"{heading(summary)}{ended}", " ".join([*said.doubts[:1], *said.sentences[:1], *said.where[:1]])]
    if said.attempt is not None and said.attempt.command:
        lines.append(f"Try: {said.attempt.command}")
    else:
        lines.append(f"More: {COMMAND} report {run.job_id}")
    return [printable(line) for line in lines]
