"""The harness's own Python, and the converter to Paraver. Judges what programs said."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness.common.programs import Answer
from harness.doctor.result import Result, ok, problem, warning
from harness.doctor.surroundings import Surroundings
from harness.export.nsys2prv import OLDEST_NSYS, PROGRAM
from harness.launch.profilers.nsys import understood

OLDEST = (3, 10)


def python(around: Surroundings) -> Iterator[Result]:
    """The harness's own Python."""
    yield python_verdict(sys.version_info[:3], sys.executable)


def python_verdict(version: tuple[int, ...], path: str) -> Result:
    """Whether this version runs the harness."""
    dotted = ".".join(map(str, version))
    if version < OLDEST:
        newer = "HARNESS_PYTHON=/usr/bin/python3.11 bash slurm.sh --install   # a Python 3.10 or newer"
        return problem(path, f"Python {dotted}, but the harness needs 3.10 or newer", newer)
    return ok(path, f"Python {dotted}")


def nsys2prv(around: Surroundings) -> Iterator[Result]:
    """The converter of nsys reports to Paraver, and whether the nsys beside it is new enough."""
    if around.which(PROGRAM) is not None:
        yield nsys2prv_verdict(around.ask("nsys", "--version"))
    elif around.uses_gpus:
        remedy = (
            "python3 -m venv ~/nsys2prv && ~/nsys2prv/bin/pip install nsys2prv   # then ~/nsys2prv/bin on PATH, or "
            "slurm.sh paraver --container IMAGE"
        )
        yield warning(PROGRAM, "is not on PATH: slurm.sh paraver writes with its own engine", remedy)
    else:
        yield ok(PROGRAM, "is not on PATH, and a CPU run does not need it")


def nsys2prv_verdict(answer: Answer) -> Result:
    """Whether the nsys beside nsys2prv can read reports for it, from `nsys --version`."""
    version = understood(answer.out, "").version
    newer = "module avail nsight   # one of 2024.6 or newer, on the PATH of nsys2prv"
    if answer.code or not version:
        return warning(PROGRAM, f"is here, but the nsys that it needs is not: {answer.reason}", newer)
    dotted = ".".join(map(str, version))
    if version[:2] < OLDEST_NSYS:
        return warning(PROGRAM, f"is here, but cannot use nsys {dotted}: it needs 2023 or later", newer)
    return ok(PROGRAM, f"is here, with nsys {dotted}")
