"""Where the doctor looks from and what for, and what a check answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, NamedTuple

from harness.common.errors import RequestError
from harness.common.paths import COMMAND
from harness.common.system.programs import ProgramOutput, ask
from harness.experiment.parse import build_experiment
from harness.launch.backends.registry import backend_of
from harness.launch.job import Job
from harness.launch.submit import prepare
from harness.run import runs_root
from harness.site.site import Site

Place = Literal["login", "here"]
QUESTION_S = 20.0
TRAININGS = (1, 2, 3)
IN_JOB = f"{COMMAND} -e 1 shows it"  # by its own refusal
NOT_FROM_LOGIN = f"cannot be seen from the login node: {IN_JOB}"


@dataclass(frozen=True)
class CourseSize:
    """How much the course will run, for the space that it needs."""

    students: int = 1
    variants: int = 1  # runs of each student


@dataclass(frozen=True)
class Surroundings:
    """A place to look from: the login node, or this machine where it is a compute node too."""

    site: Site
    node_kind: Place
    jobs: tuple[Job, ...]  # of the exercises' trainings, as the site resolves them; the first is exercise 1
    course: CourseSize = CourseSize()
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _answers: dict[str, ProgramOutput] = field(default_factory=dict)

    @property
    def uses_slurm(self) -> bool:
        return self.site.scheduler == "slurm"

    @property
    def job(self) -> Job:
        """Exercise 1, as a student launches it."""
        return self.jobs[0]

    @property
    def uses_gpus(self) -> bool:
        return self.job.device == "cuda"

    @property
    def runs(self) -> Path:
        return runs_root(self.environ)

    @property
    def prepares(self) -> bool:
        """Whether a job first loads modules or runs lines of the site, which may bring what is not on PATH here."""
        return self.node_kind == "login" and bool(self.site.modules or self.site.setup or self.site.node_setup)

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def ask(self, *argv: str, limit_s: float = QUESTION_S) -> ProgramOutput:
        """The answer of a program, with the environment that is looked at."""
        return ask(argv, limit_s, self.environ)

    def once(self, key: str, ask: Callable[[], ProgramOutput]) -> ProgramOutput:
        """The answer to a slow question that several checks ask."""
        if key not in self._answers:
            self._answers[key] = ask()
        return self._answers[key]


def look_around(site: Site, node_kind: Place | None = None, course: CourseSize = CourseSize()) -> Surroundings:
    """This process's surroundings at a site. node_kind: None, to derive it from the site's backend.

    Raises RequestError: the site's scheduler is unknown, or exercise 1 cannot run there.
    """
    derived: Place = "here" if backend_of(site).RUNS_HERE else "login"
    return Surroundings(site, node_kind or derived, tuple(_of_exercises(site)), course)


def _of_exercises(site: Site) -> Iterator[Job]:
    """The trainings that the site can run, as a launch without flags. Raises RequestError: it cannot run exercise 1."""
    for number in TRAININGS:
        words = [("-e", str(number)), ("-n", "1")]
        try:
            yield prepare(build_experiment(words, [], [], site.defaults), site).job
        except RequestError:
            if number == TRAININGS[0]:
                raise


class Level(str, Enum):
    """How bad it is. `unseen`: it could not be looked at from here, which is no fault."""

    OK = "ok"
    UNSEEN = "unseen"
    WARNING = "warning"
    PROBLEM = "problem"


class CheckResult(NamedTuple):
    level: Level
    what: str
    found: str
    remedy: str = ""  # a command; behind # what it does, or who may do it


class CheckLine(NamedTuple):
    """An answer with the name of its check."""

    check: str
    result: CheckResult


def ok(what: str, finding: str) -> CheckResult:
    return CheckResult(Level.OK, what, finding)


def warning(what: str, finding: str, remedy: str) -> CheckResult:
    """It works, and something is lost: a measurement is spoilt, a part is not recorded."""
    return CheckResult(Level.WARNING, what, finding, remedy)


def problem(what: str, finding: str, remedy: str) -> CheckResult:
    """A student's run would fail."""
    return CheckResult(Level.PROBLEM, what, finding, remedy)


def unseen(what: str, why: str) -> CheckResult:
    return CheckResult(Level.UNSEEN, what, why)


def worst(lines: list[CheckLine]) -> Level:
    """The worst level; `ok` for no line, and `unseen` counts as `ok`."""
    order = [Level.UNSEEN, Level.OK, Level.WARNING, Level.PROBLEM]
    return max([Level.OK, *(line.result.level for line in lines)], key=order.index)
