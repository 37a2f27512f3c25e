"""Reports what a job names and does not exist, before the job waits in a queue. Only for what the job reads from this
machine or from storage that the nodes share: what exists only on a compute node cannot be seen from here. Knows
resolved jobs, writes nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.common.errors import RequestError, TrainingMissing
from harness.common.paths import COMMAND, ENVIRONMENT, IN_CHECKOUT, installing
from harness.common.system.cpp_compiler import why_not_compiled
from harness.experiment.nsys_sets import load_options
from harness.experiment.training import FineTuning, ProfiledTraining
from harness.launch.backends.registry import backend_of
from harness.launch.before.lookup import why_missing
from harness.launch.container import of_registry, why_wrong_image
from harness.launch.exercises.base import launch_of
from harness.launch.job import Job
from harness.site.site import Site


def check(job: Job, environ: Mapping[str, str]) -> None:
    """Look for all that the job names. Raises RequestError: something is missing; one line each."""
    if errors := missing(job, environ):
        raise RequestError("\n".join(errors))


def missing(job: Job, environ: Mapping[str, str]) -> list[str]:
    """A sentence for each thing that the job names and does not exist."""
    return [
        *backend_of(job.site).refusals(job.output_dir),
        *_programs(job, environ),
        *_weights(job, environ),
        *launch_of(job.experiment).missing(job.experiment, job.site, environ),
        *_nsys_options(job),
        *_compiler(job, environ),
    ]


def forewarnings(job: Job, environ: Mapping[str, str]) -> list[str]:
    """For a dry run: why a launch would stop, or first install, for what is missing."""
    found = [f"a launch would stop here: {sentence}" for sentence in _missing_still(job, environ)]
    if not lacks_training(job):
        return found
    then = f"{COMMAND} would first install them" if IN_CHECKOUT else f"first run `{installing('train')}`"
    return [f"the training packages are not in {ENVIRONMENT}: {then}, about a gigabyte", *found]


def require_training(job: Job, environ: Mapping[str, str]) -> None:
    """Ask for the training packages. A launch calls this before it prints, as slurm.sh starts it a second time. Raises
    TrainingNeeded: this machine trains, and only the training packages are missing."""
    if lacks_training(job) and not _missing_still(job, environ):
        raise TrainingMissing


def lacks_training(job: Job) -> bool:
    """Whether the job would train on this machine, with our Python, and PyTorch is missing there."""
    return launch_of(job.experiment).uses_our_python(job.experiment) and site_lacks_training(job.site)


def site_lacks_training(site: Site) -> bool:
    """Whether an exercise at `site` would train on this machine, outside of a container, and PyTorch is missing."""
    return backend_of(site).RUNS_HERE and site.container is None and not _has_torch()


def _missing_still(job: Job, environ: Mapping[str, str]) -> list[str]:
    """What is missing also after slurm.sh has installed the training packages."""
    installed = list(_programs(job, environ)) if lacks_training(job) else []
    return [sentence for sentence in missing(job, environ) if sentence not in installed]


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _programs(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    if job.image is not None:
        why = "" if of_registry(job.site, job.image) else why_wrong_image(job.site, job.image, environ)
        if why:
            yield f"site {job.site.name}: its container image {why}, or name yours in a site file"
    elif launch_of(job.experiment).uses_our_python(job.experiment) and not _has_torch():
        yield (
            f"site {job.site.name} names no container, and the training packages are not in {ENVIRONMENT}: "
            f"run `{installing('train')}`, or name a container in a site file"
        )


def _weights(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    if job.checkpoint is None:
        return
    why = why_missing(job.checkpoint, environ, "folder") or why_missing(job.checkpoint, environ, "weights")
    if why:
        yield (
            f"site {job.site.name}: the checkpoint {why}: add --random-weights (the profile is the same), or give "
            "--model PATH"
        )


def _nsys_options(job: Job) -> Iterator[str]:
    if job.profiler != "nsys":
        return
    asked = isinstance(job.experiment, ProfiledTraining) and job.experiment.nsys_options is not None
    by = "--nsys-options" if asked else f"site {job.site.name}"
    if "/" in job.nsys_options and not Path(job.nsys_options).is_absolute():
        yield f"{by}: nsys {job.nsys_options!r} must be a name or an absolute path"
        return
    try:
        load_options(job.nsys_options)
    except RequestError as error:
        yield f"{by}: {error}"


def _compiler(job: Job, environ: Mapping[str, str]) -> Iterator[str]:
    here = job.device == "cpu" and job.image is None and backend_of(job.site).RUNS_HERE
    if here and isinstance(job.experiment, FineTuning) and job.experiment.compile:
        yield from filter(None, [why_not_compiled(environ)])


def check_script(job: Job, text: str) -> None:
    """Let bash parse the script before the job waits in a queue, without running it. Raises RequestError: bash cannot
    parse a line of the site."""
    on_nodes = [("node_setup", line) for line in job.node_setup]
    on_nodes += [("node_cleanup", line) for line in job.node_cleanup]
    message = _bash_says(text) or (on_nodes and _bash_says("\n".join(f"{{ :\n{line}\n}}" for _, line in on_nodes)))
    if not message:
        return
    wrong = [f"{field} {line!r}" for field, line in on_nodes if _bash_says(f"{{ :\n{line}\n}}")]
    wrong += ["setup"] * bool(_bash_says("\n".join(job.setup)))
    raise RequestError(f"site {job.site.name}: bash cannot read its {' and '.join(wrong) or 'lines'} ({message})")


def _bash_says(text: str) -> str:
    """The first message of bash when it parses the script, without the line number; empty when it can."""
    done = subprocess.run(
        ["bash", "-O", "extglob", "-n"],  # as an earlier line of the site may switch it on
        input=text.encode(),
        capture_output=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    first = done.stderr.decode(errors="replace").partition("\n")[0]
    return re.sub(r"^bash: line \d+: (warning: )?", "", first)
