"""What a command prints of a stored recording, as a page shows it: typed again and shortened, never by hand.

A page has it between `<!-- seen: COMMAND | LINES -->` and `<!-- end -->`. COMMAND has the words after `slurm.sh`, or
begins with `python`. LINES are numbers and ranges of lines; what is left out between two of them becomes `…`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from tempfile import TemporaryDirectory

from harness.common.paths import ROOT

RUNS = "tests/data/runs"  # small runs of two CPU cores, without their traces
WIDTH = 96  # of the terminal; a page of GitHub shows as much without scrolling
_CHECKOUT = {"PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH), "TZ": "UTC", "HARNESS_SITE": "local", "NO_COLOR": "1"}


def seen(asked: str) -> str:
    """The block of a page. asked: a command and lines, as above."""
    command, _, chosen = asked.rpartition(" | ")
    lines = _output(command)
    shown: list[str] = []
    for first, last in (_range(text, len(lines)) for text in chosen.split()):
        shown += [*["…"] * bool(shown), *lines[first - 1 : last]]
    typed = command if command.startswith("python ") else f"bash slurm.sh {command}"
    names_source = any(word in command for word in ("tests/data", "--reference", "--plan"))
    of = "" if names_source else " of a run on two CPU cores"
    return f"`{typed}` prints{of}:\n\n" + "\n".join(["```text", *shown, "```"])


def _range(text: str, last: int) -> tuple[int, int]:
    """The first and the last line of `4`, `4-6` or `4-`."""
    first, dash, end = text.partition("-")
    return int(first), int(end or last) if dash else int(first)


@cache
def _output(command: str) -> list[str]:
    """The lines of its standard output. Raises CalledProcessError: it failed."""
    with TemporaryDirectory() as folder:
        runs = f"{folder}/runs"  # a copy, since a report writes its page into the run
        shutil.copytree(ROOT / RUNS, runs)
        words = shlex.split(command.replace(RUNS, runs))
        argv = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", "harness", *words])]
        environment = {**os.environ, **_CHECKOUT, "HARNESS_RUNS": runs}
        done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return [line.rstrip() for line in done.stdout.splitlines()]
