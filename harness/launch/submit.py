"""From a request to a run: resolve, check, render, stage, hand to a backend."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.common.system.programs import usable_cores
from harness.common.system.secrets import forget, kept_from_nsys
from harness.experiment.exercises import Experiment, OwnTraining
from harness.launch.backends.allocation import placed
from harness.launch.backends.protocol import Submission, Together
from harness.launch.backends.registry import backend_of
from harness.launch.before.check import check
from harness.launch.before.shells_python import python_or_container
from harness.launch.exercises.base import launch_of
from harness.launch.job import Job, Machine, resolve
from harness.launch.record import record_of
from harness.launch.render import render_template, script_of
from harness.run import SECRET_MODE, Run, Stage, disk_error, own_runs_root, runs_root, write_atomically
from harness.run.record import SeriesPart
from harness.site.detection import visible_gpus
from harness.site.site import Site

_OF_SCRIPT = {"env", "setup", "modules", "container", "nodelist"}  # of a site: each run's own script says it


def this_machine() -> Machine:
    wrapper = Path(sys.prefix) / "harness-python"  # beside the packages, wherever HARNESS_VENV put them
    return Machine(
        gpus=len(visible_gpus()),
        cores=usable_cores(),
        has_nsys=shutil.which("nsys") is not None,
        python=str(wrapper) if wrapper.is_file() else sys.executable,
        runs_dir=str(runs_root()),
        own_runs_dir=str(own_runs_root()),
    )


class PreparedLaunch(NamedTuple):
    """A launch before it starts: the request with absolute paths, and the job that it gives on this machine. where: of
    the shell's allocation, whether the run uses it, as a sentence; empty: it has none."""

    experiment: Experiment
    job: Job
    where: str = ""


def prepare(experiment: Experiment, site: Site, flags: Mapping[str, str] | None = None) -> PreparedLaunch:
    """The experiment resolved for this machine. flags: as `resolve` takes them. Raises RequestError: it cannot run at
    the site."""
    asked = launch_of(experiment).with_whole_paths(experiment)  # the record has the same meaning in every folder
    here, where = placed(asked, site, os.environ)
    flags, which_python = flags or {}, ""
    if isinstance(asked, OwnTraining) and "python" not in flags:
        asked, which_python = python_or_container(asked, site, os.environ)
    job = replace(resolve(asked, here, this_machine(), flags), which_python=which_python)
    return PreparedLaunch(asked, job, where)


class Start(NamedTuple):
    """A run to submit. command: as typed. part: of which series of runs it is one. files: texts to keep in it beside
    the job's own."""

    prepared: PreparedLaunch
    command: list[str]
    part: SeriesPart | None = None
    files: Mapping[str, str] = {}


def submit(launch_start: Start) -> Run:
    """Start a prepared launch; returns its run, which then exists on disk. Raises RequestError: a file that it names
    does not exist; nothing was written. WorkError: the backend refused, or a write failed; nothing is left behind."""
    job = launch_start.prepared.job
    with _staged([launch_start]) as (asked,):
        run = backend_of(job.site).submit(asked)
    folder = Path(job.output_dir).parent  # no `git add .` of the user's own repository shall take traces with it
    if isinstance(job.experiment, OwnTraining) and folder != runs_root():
        with suppress(OSError), (folder / ".gitignore").open("x", encoding="utf-8") as file:
            file.write("*\n")
    return run


def go_together(jobs: Sequence[Job]) -> bool:
    """Whether these jobs can be one submission: the same exercise at the same site, with the same resources, of which
    each script takes what is its own."""
    return len({(job.output_dir, job.site.model_dump_json(exclude=_OF_SCRIPT), *_resources(job)) for job in jobs}) == 1


def _resources(job: Job) -> list[str]:
    return [line for line in job.directives if not line.startswith("--nodelist=")]


def submit_together(starts: Sequence[Start], way: Together, at_once: int | None = None) -> list[Run]:
    """Submit launches that go together as one array, or one after the other in one allocation; returns their runs.

    at_once: of an array, the most that run at a time.

    Raises RequestError: a file that they name does not exist, or their backend has no queue; nothing was written.
    WorkError: the backend refused, or a write failed; nothing is left behind. ValueError: they do not go together.
    """
    jobs = [start.prepared.job for start in starts]
    if not go_together(jobs):
        raise ValueError("jobs with different resources cannot be one submission")
    with _staged(starts) as asked:
        return backend_of(jobs[0].site).submit_together(
            asked, way, at_once, lambda template, lines: render_template(template, jobs=jobs, directives=lines)
        )


@contextmanager
def _staged(starts: Sequence[Start]) -> Iterator[list[Submission]]:
    """The runs, checked, with their files, which are removed afterwards where their backend did not publish them."""
    jobs = [start.prepared.job for start in starts]
    for job in jobs:
        check(job, os.environ)
    texts = [script_of(job) for job in jobs]
    if any(job.profiler == "nsys" for job in jobs):
        # A job's environment is this process's, and on this machine nsys sees this process too.
        forget(kept_from_nsys(os.environ))
    with ExitStack() as stages:
        folders = [stages.enter_context(Stage(Path(job.output_dir))) for job in jobs]
        yield [written(*each) for each in zip(folders, starts, texts, strict=True)]


def written(stage: Stage, launch_start: Start, script: str) -> Submission:
    """The run with its files in the stage, to submit. Raises WorkError: they cannot be written."""
    job = launch_start.prepared.job
    write_atomically(Run(stage.path).script, script, mode=SECRET_MODE if job.holds_secret else None)
    files = {stage.path / name: content for name, content in {**job.files, **launch_start.files}.items()}
    for folder in {*(stage.path / name for name in job.folders), *(file.parent for file in files)}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error) from None
    for file, content in files.items():
        write_atomically(file, content)
    return Submission(
        stage=stage,
        record=record_of(launch_start.prepared.experiment, job, launch_start.command, launch_start.part),
        name_for=job.name_for,
        directives=job.directives,
        gpus=(job.experiment.world_size or 0) if job.device == "cuda" else 0,
    )
