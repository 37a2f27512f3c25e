"""The container and the training packages in it, or in .venv: what the training starts. Judges what programs said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.common.bounded_read import parse_json
from harness.common.programs import Answer
from harness.doctor.result import IN_JOB, Result, ok, problem, unseen, warning
from harness.doctor.surroundings import Surroundings
from harness.experiment.exercises import Experiment, Own
from harness.launch.argv import Word, read_here, shown
from harness.launch.container import of_registry, why_wrong_image
from harness.launch.job import Job
from harness.site.site import Container, Site

INSIDE = Path(__file__).with_name("inside.py")
INSIDE_S = 75.0  # a container's first start on a cold parallel file system takes most of a minute
NEEDED_BY = {
    "torch": "all exercises",
    "accelerate": "exercises 1 and 2",
    "transformers": "exercises 1 and 2",
    "deepspeed": "exercise 2",
    "megatron.core": "exercise 3",
}
INSTALL = "bash slurm.sh --install train"


def container(around: Surroundings) -> Iterator[Result]:
    """The container's command and images."""
    job = around.job
    if around.site.container is None or job is None:
        return
    command = _program(around, job)
    path = around.which(command)
    if path is not None and around.site.container.in_srun:
        yield _pyxis(around.ask(command, "--help"))
    elif path is not None:
        yield ok(command, path)
    elif around.prepares:
        yield unseen(command, f"not on PATH before the job loads the site's modules: {IN_JOB}")
    else:
        yield problem(
            command, "is not on PATH", "module avail apptainer singularity   # then modules: in the site file"
        )
    if job.image is None or not of_registry(around.site, job.image):
        yield _image(around.site, job.image, around.environ)


def _program(around: Surroundings, job: Job) -> str:
    """What starts the container here: the site's program, or the other of the two runtimes if only that is here."""
    assert around.site.container is not None
    named, other = around.site.container.program, job.other_runtime
    return other if other and around.which(named) is None and around.which(other) else named


def _pyxis(help_of_srun: Answer) -> Result:
    if "--container-image" in help_of_srun.out:
        return ok("pyxis", "srun knows --container-image")
    why = "srun knows no --container-image: pyxis is not installed, or not in Slurm's plugstack.conf"
    return problem(
        "pyxis", why, "scontrol show config | grep -i plugstack   # its folder, for your cluster's admins"
    )


def _image(site: Site, image: Word | None, environ: Mapping[str, str]) -> Result:
    path = image or ""
    build = "apptainer build training.sif containers/training.def   # then container.image in the site file"
    if why := why_wrong_image(site, path, environ):
        return problem("container image", why, build)
    return ok("container image", shown(path))


def packages(around: Surroundings) -> Iterator[Result]:
    """The training packages, imported by the Python that trains, in the container if there is one."""
    if around.job is None:
        return
    if around.site.container is not None and not _starts_here(around, around.site.container):
        if around.place == "login":
            yield unseen("import torch, …", f"the container cannot be started here: {IN_JOB}")
        return
    if around.job.image is not None and _image_is_missing(around, around.job.image):
        return  # the check of the container says it
    where = " in the container" if around.site.container is not None else ""
    what = ("installed" if around.place == "login" else "imported") + where
    needed = _needed(around.job.experiment)
    if needed:
        yield from packages_verdict(asked_inside(around, around.job), what, needed)


def _needed(asked: Experiment) -> Mapping[str, str]:
    """The modules that the trainings need, with the trainings that do."""
    if not isinstance(asked, Own):
        return NEEDED_BY
    needed = {"torch": "your training"}
    if asked.launcher in ("accelerate", "deepspeed"):
        needed[asked.launcher] = f"--launcher {asked.launcher}"
    return {} if asked.form == "command" else needed


def _image_is_missing(around: Surroundings, image: Word) -> bool:
    return not of_registry(around.site, image) and why_wrong_image(around.site, image, around.environ) != ""


def _starts_here(around: Surroundings, container: Container) -> bool:
    """Outside of a job, srun would submit one."""
    in_job = around.place == "node"
    assert around.job is not None
    return around.which(_program(around, around.job)) is not None and (in_job or not container.in_srun)


def asked_inside(around: Surroundings, job: Job) -> Answer:
    """What inside.py prints, run by the Python that trains. Asked once for all checks.

    On a login node it only looks what is installed: many of them have too little memory for an import.
    """
    python = around.site.container.python if around.site.container else job.training_python
    how = "installed" if around.place == "login" else "import"
    return around.once("inside", lambda: ask_inside(around, job, python, str(INSIDE), how))


def ask_inside(around: Surroundings, job: Job, *program: Word) -> Answer:
    """The answer of a program in the job's container, or here if it has none."""
    words = [read_here(word, around.environ).text for word in [*job.container, *program]]
    if job.container:
        words[0] = _program(around, job)
    return around.ask(*words, limit_s=INSIDE_S)


def inside_of(answer: Answer) -> dict[str, Any] | None:
    """What inside.py found; None if it printed nothing of its own."""
    for line in reversed(answer.out.splitlines()):
        if line.startswith('{"modules"'):
            try:
                found: dict[str, Any] = parse_json(line)
            except ValueError:
                return None
            return found
    return None


def packages_verdict(answer: Answer, what: str, needed: Mapping[str, str] = NEEDED_BY) -> Iterator[Result]:
    """Which trainings can run, from what inside.py printed. what: how it looked, where. needed: module → by what."""
    contained = what.endswith("container")
    rebuild = "apptainer build training.sif containers/training.def"
    remedy = rebuild if contained else INSTALL
    found = inside_of(answer)
    if found is None:
        again = "apptainer exec IMAGE python3 -c 'import torch'   # shows why" if contained else remedy
        yield problem(what, f"the training's Python gave no answer: {answer.reason}", again)
        return
    modules = found["modules"]
    working = [f"{name} {said['version']}" for name, said in modules.items() if "version" in said]
    for name, said in modules.items():
        if "error" in said and name in needed:
            judged = problem if name == "torch" or needed is not NEEDED_BY else warning
            found_text = f"is not usable ({said['error']}): {needed[name]} cannot train"
            yield judged(f"{name} {what}", found_text, remedy)
        elif said.get("outside"):
            why = f"comes from {said['outside']}, your own packages, and hides the container's"
            yield warning(f"{name} {what}", why, "export PYTHONNOUSERSITE=1   # or in env: of the site file")
    if working:
        yield ok(what, ", ".join(working))
