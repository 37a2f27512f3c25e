"""What a check reports: a level, its subject, what was found, and the command that fixes it. Looks at nothing."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

IN_JOB = "slurm.sh doctor --in-job"  # what sees it


class Level(str, Enum):
    """How bad it is. `unseen`: it could not be looked at from here, which is no fault."""

    OK = "ok"
    UNSEEN = "unseen"
    WARNING = "warning"
    PROBLEM = "problem"


class Result(NamedTuple):
    """One answer of a check."""

    level: Level
    what: str
    found: str
    remedy: str = ""  # a command; behind # what it does, or who may do it


class CheckLine(NamedTuple):
    """An answer with the name of its check, and the hosts that gave it; no hosts: the machine of the command."""

    check: str
    result: Result
    hosts: tuple[str, ...] = ()


def ok(what: str, found: str) -> Result:
    """Nothing is wrong."""
    return Result(Level.OK, what, found)


def warning(what: str, found: str, remedy: str) -> Result:
    """It works, and something is lost: a measurement is spoilt, a part is not recorded."""
    return Result(Level.WARNING, what, found, remedy)


def problem(what: str, found: str, remedy: str) -> Result:
    """A student's run would fail."""
    return Result(Level.PROBLEM, what, found, remedy)


def unseen(what: str, why: str) -> Result:
    """It cannot be known here."""
    return Result(Level.UNSEEN, what, why)


def worst(lines: list[CheckLine]) -> Level:
    """The worst level; `ok` for no line, and `unseen` counts as `ok`."""
    order = [Level.UNSEEN, Level.OK, Level.WARNING, Level.PROBLEM]
    return max([Level.OK, *(line.result.level for line in lines)], key=order.index)
