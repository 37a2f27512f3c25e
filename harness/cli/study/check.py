"""`slurm.sh check`: whether B is worse than A, by several runs of each, or that it cannot be told."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.commands import run_command
from harness.cli.options import JsonOption
from harness.cli.page import as_text, of_function
from harness.cli.script_words import RUN
from harness.common.errors import RequestError, WorkError
from harness.common.paths import PROGRAM

if TYPE_CHECKING:
    from harness.study.check.arms import CheckArm
    from harness.study.check.result import Checked

USUAL_RUNS = 4  # of each arm
MOST_RUNS = 64
USUAL_SHARE = "5%"
LEAST_SHARE, MOST_SHARE = 0.001, 1.0
CANNOT_TELL = 3
EXITS = [
    ("0", "B is the same or better"),
    ("1", "B is worse"),
    ("2", "wrong request"),
    ("3", "cannot tell, not comparable, or its runs failed"),
]
EXAMPLES = [
    ("check '-e 1' '-e 1 -- --micro-batch-size 4'", "four runs of each, alternating"),
    ("check local-3,local-5 local-4,local-6", "existing runs"),
]
EXAMPLE = f"{PROGRAM} check '-e 1 -g 2' '-e 1 -g 2 -- --mixed-precision'"


def check(arguments: list[str]) -> int:
    """`slurm.sh check` from its arguments; returns the exit code.

    A launch in quotes is one word, and begins with a dash as an option does: it gets the program's name before it.

    Raises:
        WorkError: its runs failed. Its exit code is that of `cannot tell`, because 1 says that B is worse.
    """
    try:
        return run_command("check", command, [_as_argument(word) for word in arguments])
    except WorkError as error:
        error.exit_code = CANNOT_TELL
        raise


def page(_: list[str]) -> str:
    """The help page."""
    return as_text(of_function("check", command, EXITS, EXAMPLES, "docs/check.md"))


def _as_argument(word: str) -> str:
    if word in ("-e", "--exercise"):
        raise RequestError(f"check: {word}: put each launch into quotes, as in {EXAMPLE}")
    own = word.startswith(("--fail-above", "--metric"))
    asks = word.startswith("-") and not own and (" " in word or word.startswith("-e"))
    asks = asks or word.startswith(f"{RUN} ")
    return f"{PROGRAM} {word}" if asks else word


def command(
    a: Annotated[str, typer.Argument(metavar="A", help="the base, given in the same way as B")],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="a run, several runs with commas, a series, or a launch in quotes: then runs of A and B are made",
        ),
    ],
    *,
    fail_above: Annotated[
        str, typer.Option("--fail-above", metavar="P%", help="how much worse B may be")
    ] = USUAL_SHARE,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="NAME", help="the number to judge [step_time]")
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option("--runs", metavar="N", min=2, max=MOST_RUNS, help=f"runs of each launch [{USUAL_RUNS}]"),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="SERIES",
            help="keep the runs of this check, and make the missing ones; for launches",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Whether B is slower than A, from several runs of each. If the runs differ too much, it cannot tell and prints
    the command that would."""
    from harness.report.tables.catalogue import numbers
    from harness.study.check.result import Question, check_arms

    question = Question(_share(fail_above), metric, numbers())
    launches = [_is_launch(word) for word in (a, b)]
    if any(launches) and not all(launches):
        raise RequestError(
            "check: one of A and B is runs, the other a launch: give two launches, which then alternate"
        )
    if not any(launches) and (runs or resume):
        raise RequestError(f"{'--runs' if runs else '--resume'} is for launches in quotes, as in {EXAMPLE}")
    asked = [*_unless(fail_above, USUAL_SHARE, "--fail-above"), *_unless(metric, None, "--metric")]
    if all(launches):
        from harness.cli.study.check_runs import launches_of, make_arms

        asked_for = launches_of([shlex.split(word) for word in (a, b)])
        arms, series = make_arms(asked_for, runs or USUAL_RUNS, resume, asked)
        asked += ["--resume", series]
    else:
        from harness.study.check.arms import arms_of_runs

        arms = arms_of_runs((a, b))
    checked = check_arms(*arms, question)
    return _answer(checked.model_copy(update={"next": _next(checked, arms, asked)}), as_json)


def _is_launch(word: str) -> bool:
    return re.match(rf"(bash )?{re.escape(PROGRAM)} ", word) is not None


def _share(text: str) -> float:
    """`5%` as 0.05. Raises RequestError: it is anything else."""
    found = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+)%", text)
    share = float(found[1]) / 100 if found else None
    if share is not None and LEAST_SHARE <= share <= MOST_SHARE:
        return share
    near = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+) ?%?", text)
    number = float(near[1]) if near else 100 * 0.05
    percentage = 100 * number if 0 < number < 1 and "%" not in text else number
    percentage = min(max(percentage, 100 * LEAST_SHARE), 100 * MOST_SHARE)
    raise RequestError(
        f"--fail-above takes a percentage from 0.1% to 100%, not {text!r}: did you mean {percentage:g}%?"
    )


def _unless(value: str | None, usual: str | None, flag: str) -> list[str]:
    return [] if value == usual or value is None else [flag, value]


def _next(checked: Checked, arms: Sequence[CheckArm], asked: Sequence[str]) -> str | None:
    """The command whose runs would tell; None if it is told, or an arm is no launch of ours."""
    from harness.study.check.arms import launch_of_arm

    arguments = [launch_of_arm(arm) for arm in arms]
    if checked.needed_runs is None or None in arguments:
        return None
    needed = ["--runs", str(checked.needed_runs), *asked]
    return shlex.join([PROGRAM, "check", *(word for word in arguments if word is not None), *needed])


def _answer(checked: Checked, as_json: bool) -> int:
    from harness.cli.screen import columns
    from harness.cli.study.check_text import lines_of
    from harness.report.tables.screen import WIDTH

    if as_json:
        print(checked.model_dump_json(indent=1))
    else:
        sys.stdout.write("\n".join(lines_of(checked, columns(WIDTH))) + "\n")
    return checked.verdict.exit_code
