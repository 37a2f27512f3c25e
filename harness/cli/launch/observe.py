"""`slurm.sh observe -- COMMAND`: the user's own command in the job that there is, observed; the lines of a module that
observes every training; three lines on a job for its log or mail."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from harness.cli.help import HelpPage, flag_rows
from harness.cli.parser import DeclaredParameter, by_spelling, read_line, refuse_mistakes
from harness.common.display.printable import printable
from harness.common.errors import RequestError, WorkError
from harness.common.paths import COMMAND, PROGRAM, ROOT
from harness.common.run_folder import job_folder
from harness.common.run_folder.job_folder import RunRequest

OBSERVE = job_folder.WORD
Profiler = Literal["none", "torch"]
OnHang = Literal["report", "stop"]
Shell = Literal["sh", "lua", "tcl"]
MOST_STEPS = 10_000
_OF_DEEPSPEED = re.compile(r"--local[_-]rank=\d+")  # its launcher puts this word before the script's own
# By language: a comment, how a folder comes before those of PYTHONPATH, how a variable is set, how a text is quoted.
_MODULES: dict[str, tuple[str, str, str, Callable[[str], str]]] = {
    "sh": ("#", "export PYTHONPATH=%s${PYTHONPATH:+:$PYTHONPATH}", "export %s=%s", shlex.quote),
    "lua": ("--", 'prepend_path("PYTHONPATH", %s)', 'setenv("%s", %s)', "[[{}]]".format),
    "tcl": ("#", "prepend-path PYTHONPATH %s", "setenv %s %s", "{{{}}}".format),
}
FLAGS = (
    DeclaredParameter(
        ("--profiler",), "none|torch", "also record some steps, with torch.profiler [none]", kind=Profiler
    ),
    DeclaredParameter(("--steps",), "N", f"the recorded steps, after the first 7 [{job_folder.WINDOW['active']}]"),
    DeclaredParameter(
        ("--on-hang",),
        "report|stop",
        "what to do if no rank makes progress; stop: as soon as no rank works [report]",
        kind=OnHang,
    ),
    DeclaredParameter(("--no-report",), "", "print no report after the command"),
    DeclaredParameter(
        ("--env",),
        "sh|lua|tcl",
        "print the lines for a module: every training is observed, without a word [sh]",
        alone="sh",
        kind=Shell,
    ),
    DeclaredParameter(("--summary",), "JOBID", "print three lines on a job, for the end of its log or for a mail"),
)

page = HelpPage(
    usage=["observe [FLAGS] -- COMMAND…", "observe --env [sh|lua|tcl]", "observe --summary JOBID"],
    about="One word before a command of yours, in your own sbatch script, in salloc, in a container or on a "
    "workstation: it starts as it is and ends as it ends. Its trainings in Python become runs: where the time goes, at "
    "which line, what is stuck. No launcher and no flag of the training changes.",
    flags=flag_rows(FLAGS),
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
        raise RequestError("observe: --steps is for --profiler torch: add it, or leave it out")
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
    for flag, lines_of in {"--env": module_lines, "--summary": summary_lines}.items():
        if [*given] == [flag]:
            print("\n".join(lines_of(given[flag])))
            return 0
    raise RequestError(f"observe: name a command after --, as in {COMMAND} observe -- torchrun train.py")


def _flags(words: Sequence[str]) -> dict[str, str]:
    """The flags and their values. Raises RequestError."""
    flags = by_spelling(FLAGS)
    line = read_line(words, flags)
    if line.words:
        word = printable(line.words[0])
        hint = f"a command stands after --, as in {COMMAND} observe -- {word} …"
        raise RequestError(f"observe: unexpected word {word!r}: {hint}")
    refuse_mistakes(line, flags, OBSERVE)
    return line.given


# -- for sites ---------------------------------------------------------------------------------------------------------


def module_lines(shell: str) -> list[str]:
    """The lines of a modulefile, by the language it is written in.

    >>> module_lines("lua")[1].startswith('prepend_path("PYTHONPATH", [[')
    True
    """
    comment, prepend, setenv, quoted = _MODULES[shell]
    values = {job_folder.VARIABLE: job_folder.BY_ITSELF, job_folder.PYTHON: sys.executable}
    off = f"for who does not want it: {job_folder.VARIABLE}={job_folder.OFF[0]}"
    head = [f"{comment} Observe every training in Python; {off}", prepend % quoted(str(ROOT / "harness/observe/site"))]
    return [*head, *(setenv % (name, quoted(text)) for name, text in values.items())]


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
