"""Where the doctor looks from and what for: the site, its jobs, the environment. Judges nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from harness.common.bounded_read import read_bounded_text
from harness.common.errors import RequestError
from harness.common.programs import Answer, ask
from harness.experiment.base import Experiment
from harness.experiment.parse import build_experiment
from harness.launch.backends.registry import backend_of
from harness.launch.job import Job
from harness.launch.submit import prepare
from harness.run import own_runs_root, runs_root
from harness.site.site import Site

Place = Literal["login", "node", "here"]
QUESTION_S = 20.0
TRAININGS = (1, 2, 3)


@dataclass(frozen=True)
class Course:
    """How much the course will run, for the space that it needs."""

    students: int = 1
    variants: int = 1  # runs of each student


@dataclass(frozen=True)
class Surroundings:
    """A place to look from: the login node, a compute node of a job, or this machine where it is both."""

    site: Site
    place: Place
    jobs: tuple[
        Job, ...
    ] = ()  # of the exercises' trainings, as the site resolves them; the first is exercise 1
    refusals: tuple[str, ...] = ()  # why the site resolves no job of exercise 1
    course: Course = Course()
    nodes: int = 1  # of the job that this process is a part of
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    own: Experiment | None = None  # a training of the user's own; then its job is the only one
    paths: tuple[str, ...] = ()  # the files and folders that its arguments name where it was asked for
    root: Path = Path("/")  # of the system's own files: /proc, /sys
    _answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def uses_slurm(self) -> bool:
        """Whether the site's jobs go to Slurm."""
        return self.site.scheduler == "slurm"

    @property
    def job(self) -> Job | None:
        """Exercise 1, as a student launches it, or the training of the user's own."""
        return self.jobs[0] if self.jobs else None

    @property
    def uses_gpus(self) -> bool:
        """Whether trainings run on GPUs."""
        return self.job is not None and self.job.device == "cuda"

    @property
    def runs(self) -> Path:
        """The folder for runs."""
        return runs_root(self.environ) if self.own is None else own_runs_root(self.environ)

    @property
    def prepares(self) -> bool:
        """Whether a job first loads modules or runs lines of the site, which may bring what is not on PATH here."""
        return self.place == "login" and bool(self.site.modules or self.site.setup or self.site.node_setup)

    @cached_property
    def user(self) -> str:
        """Our name at the site."""
        import pwd

        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            return str(os.getuid())

    def which(self, program: str) -> str | None:
        """The program's path, or None."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def ask(self, *argv: str, limit_s: float = QUESTION_S) -> Answer:
        """The answer of a program, with the environment that is looked at."""
        return ask(argv, limit_s, self.environ)

    def once(self, key: str, question: Callable[[], Answer]) -> Answer:
        """The answer to a slow question that several checks ask."""
        if key not in self._answers:
            self._answers[key] = question()
        return self._answers[key]

    def read(self, path: str) -> str | None:
        """A small file of the system, without blanks around it; None if it is not there."""
        try:
            return read_bounded_text(self.root / path, errors="replace").strip()
        except (OSError, ValueError):
            return None


def look_around(
    site: Site,
    place: Place | None = None,
    course: Course = Course(),
    nodes: int = 1,
    *,
    own: Experiment | None = None,
    paths: Sequence[str] = (),
) -> Surroundings:
    """This process's surroundings at a site. place: None, to derive it from the site's backend. own, paths: as there.

    Raises RequestError: the site's scheduler is unknown.
    """
    derived: Place = "here" if backend_of(site).RUNS_HERE else "login"
    jobs, refusals = _jobs(site, nodes) if own is None else _own_job(own, site)
    whole = jobs[0].site if own is not None and jobs else site
    return Surroundings(whole, place or derived, jobs, refusals, course, nodes, own=own, paths=tuple(paths))


def _own_job(asked: Experiment, site: Site) -> tuple[tuple[Job, ...], tuple[str, ...]]:
    try:
        return (prepare(asked, site).job,), ()
    except RequestError as error:
        return (), tuple(str(error).splitlines())


def _jobs(site: Site, nodes: int) -> tuple[tuple[Job, ...], tuple[str, ...]]:
    """The trainings' jobs with the options of a launch without flags; without exercise 1 there is none."""
    jobs: list[Job] = []
    for number in TRAININGS:
        try:
            asked = build_experiment([("-e", str(number)), ("-n", str(nodes))], [], [], site.defaults)
            jobs.append(prepare(asked, site).job)
        except RequestError as error:
            if number == TRAININGS[0]:
                return (), tuple(str(error).splitlines())
    return tuple(jobs), ()
