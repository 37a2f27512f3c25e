"""What the training starts: its container, its packages, nsys and nsys2prv. Judges what programs said."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.common.bounded_read import parse_json
from harness.common.errors import RequestError
from harness.common.paths import COMMAND, IN_CHECKOUT, PROGRAM, README_OF_IMAGES, installing, shown_file
from harness.common.programs import ProgramOutput
from harness.doctor.surroundings import IN_JOB, CheckResult, Surroundings, ok, problem, unseen, warning
from harness.experiment.exercises import Experiment, OwnTraining
from harness.experiment.nsys_sets import METRICS, Options, load_options, profile_words
from harness.launch.argv import Word, read_here, shown
from harness.launch.container import of_registry, why_wrong_image
from harness.launch.job import Job
from harness.launch.node import OTHER_RUNTIME
from harness.launch.profilers.nsys import Nsys, adapted, blindness, understood

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
OTHER_NSYS = (
    "module avail nsight-systems   # a newer nsys may know this GPU; if DCGM holds its counters, ask administrators"
)
NO_METRICS = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
OLDEST = (3, 10)
NSYS2PRV = "nsys2prv"
OLDEST_NSYS = (2023, 1)  # in the exports of older ones nsys2prv does not find what it needs


def container(around: Surroundings) -> Iterator[CheckResult]:
    """The container's command and images."""
    job = around.job
    if around.site.container is None or job is None:
        return
    command = _program(around)
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
    image = job.image or ""
    if not of_registry(around.site, image):
        build = f"{BUILD_IMAGE}   # then container.image in the site file"
        why = why_wrong_image(around.site, image, around.environ)
        yield problem("container image", why, build) if why else ok("container image", shown(image))


def _program(around: Surroundings) -> str:
    """What starts the container here: the site's program, or the other of the two runtimes if only that is here."""
    assert around.site.container is not None
    named = around.site.container.program
    other = OTHER_RUNTIME.get(named)
    return other if other and around.which(named) is None and around.which(other) else named


def packages(around: Surroundings) -> Iterator[CheckResult]:
    """The training packages, imported by the Python that trains, in the container if there is one."""
    job = around.job
    if job is None:
        return
    needed = _needed(job.experiment)
    if around.site.container is not None:
        outside = around.node_kind != "node" and around.site.container.in_srun  # there srun would submit a job
        if outside or around.which(_program(around)) is None:
            if around.node_kind == "login":
                yield unseen("import torch, …", f"the container cannot be started here: {IN_JOB}")
            return
        image = job.image or ""
        if job.image and not of_registry(around.site, image) and why_wrong_image(around.site, image, around.environ):
            return  # the check of the container says it
    if needed:
        yield from _usable(around, job, needed)


def _needed(experiment: Experiment) -> Mapping[str, str]:
    """The modules that the trainings need, with the trainings that do."""
    if not isinstance(experiment, OwnTraining):
        return NEEDED_BY
    needed = {"torch": "your training"}
    if experiment.launcher in ("accelerate", "deepspeed"):
        needed[experiment.launcher] = f"--launcher {experiment.launcher}"
    return {} if experiment.form == "command" else needed


def _usable(around: Surroundings, job: Job, needed: Mapping[str, str]) -> Iterator[CheckResult]:
    """Which trainings can run, from what inside.py printed. needed: module → by what."""
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
        if "error" in said and name in needed:
            judged = problem if name == "torch" or needed is not NEEDED_BY else warning
            found_text = f"is not usable ({said['error']}): {needed[name]} cannot train"
            yield judged(f"{name} {what}", found_text, ADDED.get(name, remedy) if contained else remedy)
        elif said.get("outside"):
            why = f"comes from {said['outside']}, your own packages, and hides the container's"
            yield warning(f"{name} {what}", why, "export PYTHONNOUSERSITE=1   # or in env: of the site file")
    if working:
        yield ok(what, ", ".join(working))


def asked_inside(around: Surroundings, job: Job) -> ProgramOutput:
    """What inside.py prints, run by the Python that trains. Asked once for all checks.

    On a login node it only looks what is installed: many of them have too little memory for an import.
    """
    python = around.site.container.python if around.site.container else job.training_python
    how = "installed" if around.node_kind == "login" else "import"
    return around.once("inside", lambda: ask_inside(around, job, python, str(INSIDE), how))


def ask_inside(around: Surroundings, job: Job, *program: Word) -> ProgramOutput:
    """The answer of a program in the job's container, or here if it has none."""
    words = [read_here(word, around.environ).text for word in [*job.container, *program]]
    if job.container:
        words[0] = _program(around)
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
    """nsys: its version, and which options of the site's file it understands."""
    job = around.job
    if job is None or (job.nsys_inside and job.profiler != "nsys"):
        return None
    if job.nsys_inside:
        return _nsys_inside(around, job)
    if around.which("nsys") is None:
        return _without_nsys(around, job.profiler == "nsys")
    try:
        options = load_options(job.nsys_options)
    except RequestError as error:
        return problem("nsys options of the site", str(error), "ls configs/nsys   # then nsys: in the site file")
    return _understood(around, options, job.nsys_options)


def _understood(around: Surroundings, options: Options, name: str) -> CheckResult:
    found = installed_nsys(around)
    if not isinstance(found, Nsys):
        return problem("nsys --version", found, "module avail nsight   # another version")
    what = f"nsys {found.dotted}"
    if not found.flags:
        return problem(what, "nsys profile --help lists no options", "nsys profile --help")
    left_out = adapted(profile_words(options, [], has_gpu=around.uses_gpus), found).left_out
    if left_out:
        newer = "module avail nsight   # a newer nsys, or another file in nsys: of the site file"
        return warning(what, f"options of {name}: " + "; ".join(left_out), newer)
    return ok(what, f"understands every option of {name}")


def _nsys_inside(around: Surroundings, job: Job) -> CheckResult:
    """Where srun makes the container, nsys is a program of the image."""
    if around.node_kind != "node":
        return unseen("nsys in the container", f"the container cannot be started here: {IN_JOB}")
    answer = ask_inside(around, job, "nsys", "--version")
    if answer.code:
        build = f"less {README_OF_IMAGES}   # how nsys gets into the image; or profiler: torch in the site file"
        return problem("nsys in the container", f"does not answer: {answer.reason}", build)
    return ok("nsys in the container", answer.out.strip())


def _without_nsys(around: Surroundings, records: bool) -> CheckResult:
    if not records and not around.uses_gpus:
        return ok("nsys", "is not here, and runs on a CPU are recorded with torch.profiler")
    if around.prepares:
        return unseen("nsys", f"not on PATH before the job loads the site's modules: {IN_JOB}")
    if records:
        load = "module avail nsight cuda   # then modules: in the site file, or profiler: torch"
        return problem("nsys", "is not on PATH, but the site's runs are recorded with it", load)
    load = "module avail nsight cuda   # then modules: in the site file"
    return warning("nsys", "is not on PATH: torch.profiler records, without the GPU's counters", load)


def installed_nsys(around: Surroundings) -> Nsys | str:
    """The nsys on PATH, or why it does not answer."""
    version = around.once("nsys version", lambda: around.ask("nsys", "--version", limit_s=NSYS_S))
    help_text = around.once("nsys help", lambda: around.ask("nsys", "profile", "--help", limit_s=NSYS_S))
    wrong = next((answer.reason for answer in (version, help_text) if answer.code), "")
    return wrong or understood(version.out, help_text.out + help_text.err)


def _options(job: Job) -> Options:
    """Those of the site; none where they cannot be read, as the check of nsys says."""
    try:
        return load_options(job.nsys_options)
    except RequestError:
        return {"sample": "none"}


def gpu_metrics(around: Surroundings) -> Iterator[CheckResult]:
    """Whether users may read the GPU's counters (ERR_NVGPUCTRPERM)."""
    parameters = around.read("proc/driver/nvidia/params")
    if parameters is None or around.job is None:
        return
    what = "RmProfilingAdminOnly of the NVIDIA driver"
    values = dict(line.split(":", 1) for line in parameters.splitlines() if ":" in line)
    value = values.get("RmProfilingAdminOnly", "").strip()
    remedy = OTHER_NSYS
    if value == "1" and os.geteuid() != 0:
        why = "is 1: only root may read GPU metrics (ERR_NVGPUCTRPERM); nsys records all else"
        remedy = f"echo '{NO_METRICS}' | sudo tee /etc/modprobe.d/nsys.conf   # administrators, then reload the driver"
        yield warning(what, why, remedy)
    elif not value:
        yield unseen(what, "the driver does not say it")
    else:
        yield ok(what, f"is {value}: GPU metrics can be recorded")
    found = installed_nsys(around) if around.which("nsys") else ""
    if isinstance(found, Nsys) and any(map(_options(around.job).get, METRICS)):
        names = [name for name in ("gpu-metrics-devices", "gpu-metrics-device") if name in found.flags]
        for flag in (f"--{name}=help" for name in names[:1]):
            answer = around.ask("nsys", "profile", flag, limit_s=NSYS_S)
            if why := blindness(answer.out + answer.err):
                yield warning(f"nsys profile {flag}", f"{why}: nsys records all but GPU metrics", remedy)


def cpu_samples(around: Surroundings) -> CheckResult | None:
    """Whether nsys may sample the CPU, if the site's options ask for it."""
    job, level = around.job, around.read("proc/sys/kernel/perf_event_paranoid")
    if job is None or level is None or _options(job).get("sample") == "none":
        return None
    what = "kernel.perf_event_paranoid"
    if level.lstrip("-").isdigit() and int(level) > 2:
        remedy = "sudo sysctl kernel.perf_event_paranoid=2   # administrators"
        return warning(what, f"is {level}: nsys takes no samples of the CPU; all else is recorded", remedy)
    return ok(what, f"is {level}: nsys may sample the CPU")


def python(around: Surroundings) -> CheckResult:
    dotted = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        newer = f"HARNESS_PYTHON=/usr/bin/python3.11 {COMMAND} --install   # a Python 3.10 or newer"
        return problem(sys.executable, f"Python {dotted}, but the harness needs 3.10 or newer", newer)
    return ok(sys.executable, f"Python {dotted}")


def nsys2prv(around: Surroundings) -> CheckResult:
    """The converter of nsys reports to Paraver, and whether the nsys beside it is new enough."""
    if around.which(NSYS2PRV) is None:
        if not around.uses_gpus:
            return ok(NSYS2PRV, "is not on PATH, and a CPU run does not need it")
        remedy = (
            "python3 -m venv ~/nsys2prv && ~/nsys2prv/bin/pip install nsys2prv   # then ~/nsys2prv/bin on PATH, or "
            f"{PROGRAM} export paraver --container IMAGE"
        )
        return warning(NSYS2PRV, f"is not on PATH: {PROGRAM} export paraver writes with its own engine", remedy)
    answer = around.ask("nsys", "--version")
    found = understood(answer.out, "")
    newer = "module avail nsight   # one of 2024.6 or newer, on the PATH of nsys2prv"
    if answer.code or not found.version:
        return warning(NSYS2PRV, f"is here, but the nsys that it needs is not: {answer.reason}", newer)
    if found.version[:2] < OLDEST_NSYS:
        return warning(NSYS2PRV, f"is here, but cannot use nsys {found.dotted}: it needs 2023 or later", newer)
    return ok(NSYS2PRV, f"is here, with nsys {found.dotted}")
