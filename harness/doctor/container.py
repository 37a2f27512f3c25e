"""What the training starts: its container, its packages and nsys. Judges what programs said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.common.paths import IN_CHECKOUT, README_OF_IMAGES, installing, shown_file
from harness.common.system.bounded_read import parse_json
from harness.common.system.programs import ProgramOutput
from harness.doctor.surroundings import IN_JOB, CheckResult, Surroundings, ok, problem, unseen, warning
from harness.launch.argv import Word, read_here
from harness.launch.container import of_registry, why_wrong_image
from harness.launch.job import Job

INSIDE = Path(__file__).with_name("inside.py")
INSIDE_S = 75.0  # a container's first start on a cold parallel file system takes most of a minute
NEEDED_BY = {
    "torch": "all exercises",
    "accelerate": "exercises 1 and 2",
    "transformers": "exercises 1 and 2",
    "deepspeed": "exercise 2",
    "megatron.core": "exercise 3",
}
BUILD_IMAGE = "apptainer build training.sif containers/training.def" + "   # in a checkout" * (not IN_CHECKOUT)
# Packages without compiled parts, which can lie beside an image that lacks them.
ADDED = {
    "megatron.core": f"pip install --no-deps -c {shown_file('containers/constraints.txt')} "
    f'--target "$HOME/packages" megatron-core'
    f"   # then bind it ({README_OF_IMAGES})"
}
NSYS_S = 60.0


def container(around: Surroundings) -> Iterator[CheckResult]:
    """The program that starts the container."""
    if around.site.container is None:
        return
    command = around.site.container.program
    path = around.which(command)
    if path is not None and around.site.container.in_srun:
        if "--container-image" in around.ask(command, "--help").out:
            yield ok("pyxis", "srun knows --container-image")
        else:
            why = "srun knows no --container-image: pyxis is not installed, or not in Slurm's plugstack.conf"
            show = "scontrol show config | grep -i plugstack   # its folder, for your cluster's admins"
            yield problem("pyxis", why, show)
    elif path is not None:
        yield ok(command, path)
    elif around.prepares:
        yield unseen(command, f"not on PATH before the job loads the site's modules: {IN_JOB}")
    else:
        yield problem(
            command, "is not on PATH", "module avail apptainer singularity   # then modules: in the site file"
        )


def packages(around: Surroundings) -> Iterator[CheckResult]:
    """The training packages, imported by the Python that trains, in the container if there is one."""
    job = around.job
    if around.site.container is not None:
        in_srun = around.site.container.in_srun  # which would submit a job
        if in_srun or around.which(around.site.container.program) is None:
            if around.node_kind == "login":
                yield unseen("import torch, …", f"the container cannot be started here: {IN_JOB}")
            return
        image = job.image or ""
        if job.image and not of_registry(around.site, image) and why_wrong_image(around.site, image, around.environ):
            return  # the checks of the launch and of the files say it
    yield from _usable(around, job)


def _usable(around: Surroundings, job: Job) -> Iterator[CheckResult]:
    """Which trainings can run, from what inside.py printed."""
    answer, contained = asked_inside(around, job), around.site.container is not None
    what = ("installed" if around.node_kind == "login" else "imported") + " in the container" * contained
    remedy = BUILD_IMAGE if contained else installing("train")
    found = inside_of(answer)
    if found is None:
        again = "apptainer exec IMAGE python3 -c 'import torch'   # shows why" if contained else remedy
        yield problem(what, f"the training's Python gave no answer: {answer.reason}", again)
        return
    modules = found["modules"]
    working = [f"{name} {said['version']}" for name, said in modules.items() if "version" in said]
    for name, said in modules.items():
        if "error" in said:
            judged = problem if name == "torch" else warning
            found_text = f"is not usable ({said['error']}): {NEEDED_BY[name]} cannot train"
            yield judged(f"{name} {what}", found_text, ADDED.get(name, remedy) if contained else remedy)
    if working:
        yield ok(what, ", ".join(working))


def asked_inside(around: Surroundings, job: Job) -> ProgramOutput:
    """What inside.py prints, run by the Python that trains. Asked once for all checks.

    On a login node it only looks what is installed: many of them have too little memory for an import.
    """
    python = around.site.container.python if around.site.container else job.training_python
    how = "installed" if around.node_kind == "login" else "import"
    return around.once("inside", lambda: ask_inside(around, job, python, "-s", str(INSIDE), how))


def ask_inside(around: Surroundings, job: Job, *program: Word) -> ProgramOutput:
    """The answer of a program in the job's container, or here if it has none."""
    words = [read_here(word, around.environ).text for word in [*job.container, *program]]
    return around.ask(*words, limit_s=INSIDE_S)


def inside_of(answer: ProgramOutput) -> dict[str, Any] | None:
    """What inside.py found; None if it printed nothing of its own."""
    for line in reversed(answer.out.splitlines()):
        if line.startswith('{"modules"'):
            try:
                found: dict[str, Any] = parse_json(line)
            except ValueError:
                return None
            return found
    return None


def nsys(around: Surroundings) -> CheckResult | None:
    """Whether nsys is there and answers."""
    job = around.job
    if job.nsys_inside:
        why = f"the container cannot be started here: {IN_JOB}"
        return unseen("nsys in the container", why) if job.profiler == "nsys" else None
    if around.which("nsys") is None:
        return _without_nsys(around, job.profiler == "nsys")
    answer = around.ask("nsys", "--version", limit_s=NSYS_S)
    if answer.code:
        return problem("nsys --version", answer.reason, "module avail nsight   # another version")
    return ok("nsys", answer.out.strip())


def _without_nsys(around: Surroundings, records: bool) -> CheckResult:
    if not records:
        return ok("nsys", "is not here: runs are recorded with torch.profiler")
    if around.prepares:
        return unseen("nsys", f"not on PATH before the job loads the site's modules: {IN_JOB}")
    load = "module avail nsight cuda   # then modules: in the site file, or profiler: torch"
    return problem("nsys", "is not on PATH, but the site's runs are recorded with it", load)
