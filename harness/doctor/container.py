"""What the training starts: its container, its packages, nsys and nsys2prv. Judges what programs said."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.common.bounded_read import parse_json
from harness.common.errors import RequestError
from harness.common.programs import Answer
from harness.doctor.surroundings import IN_JOB, Result, Surroundings, ok, problem, unseen, warning
from harness.experiment.exercises import Experiment, Own
from harness.export.nsys2prv import OLDEST_NSYS, PROGRAM
from harness.launch.argv import Word, read_here, shown
from harness.launch.container import of_registry, why_wrong_image
from harness.launch.job import Job
from harness.launch.profilers.nsys import (
    Nsys,
    Options,
    blindness,
    load_options,
    profile_argv,
    understood,
    wants_metrics,
)
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
    return problem("pyxis", why, "scontrol show config | grep -i plugstack   # its folder, for your cluster's admins")


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


NSYS_S = 60.0
OTHER_NSYS = (
    "module avail nsight-systems   # a newer nsys may know this GPU; if DCGM holds its counters, ask administrators"
)
NO_METRICS = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"


def nsys(around: Surroundings) -> Iterator[Result]:
    """nsys: its version, and which options of the site's file it understands."""
    job = around.job
    if job is None:
        return
    if job.nsys_inside:
        yield from _nsys_inside(around, job)
        return
    if around.which("nsys") is None:
        yield _without_nsys(around, job.profiler == "nsys")
        return
    try:
        options = load_options(job.nsys_options)
    except RequestError as error:
        yield problem("nsys options of the site", str(error), "ls configs/nsys   # then nsys: in the site file")
        return
    found = installed_nsys(around)
    if isinstance(found, Nsys):
        yield nsys_verdict(found, options, job.nsys_options, around.uses_gpus)
    else:
        yield problem("nsys --version", found, "module avail nsight   # another version")


def _nsys_inside(around: Surroundings, job: Job) -> Iterator[Result]:
    """Where srun makes the container, nsys is a program of the image."""
    if job.profiler != "nsys":
        return
    if around.place != "node":
        yield unseen("nsys in the container", f"the container cannot be started here: {IN_JOB}")
        return
    answer = ask_inside(around, job, "nsys", "--version")
    if answer.code:
        build = "less containers/README.md   # how nsys gets into the image; or profiler: torch in the site file"
        yield problem("nsys in the container", f"does not answer: {answer.reason}", build)
    else:
        yield ok("nsys in the container", answer.out.strip())


def _without_nsys(around: Surroundings, records: bool) -> Result:
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


def nsys_verdict(found: Nsys, options: Options, name: str, has_gpu: bool) -> Result:
    """Which options of the set this nsys has to leave out."""
    version = ".".join(map(str, found.version)) or "of unknown version"
    what = f"nsys {version}"
    if not found.flags:
        return problem(what, "nsys profile --help lists no options", "nsys profile --help")
    _, left_out = profile_argv(found, options, "report", has_gpu)
    if left_out:
        newer = "module avail nsight   # a newer nsys, or another file in nsys: of the site file"
        return warning(what, f"options of {name}: " + "; ".join(left_out), newer)
    return ok(what, f"understands every option of {name}")


def gpu_metrics(around: Surroundings) -> Iterator[Result]:
    """Whether users may read the GPU's counters (ERR_NVGPUCTRPERM)."""
    parameters = around.read("proc/driver/nvidia/params")
    if parameters is None or around.job is None:
        return
    may_read = counters_verdict(parameters, is_root=os.geteuid() == 0)
    yield may_read
    found = installed_nsys(around) if around.which("nsys") else ""
    if isinstance(found, Nsys) and _asks_for_metrics(around):
        names = [name for name in ("gpu-metrics-devices", "gpu-metrics-device") if name in found.flags]
        flag = f"--{names[0]}=help" if names else ""
        if flag and (why := blindness(_text(around, flag))):
            yield warning(
                f"nsys profile {flag}", f"{why}: nsys records all but GPU metrics", may_read.remedy or OTHER_NSYS
            )


def _text(around: Surroundings, flag: str) -> str:
    answer = around.ask("nsys", "profile", flag, limit_s=NSYS_S)
    return answer.out + answer.err


def _asks_for_metrics(around: Surroundings) -> bool:
    try:
        return around.job is not None and wants_metrics(load_options(around.job.nsys_options))
    except RequestError:  # the check of nsys says it
        return False


def _metrics_remedy() -> str:
    return f"echo '{NO_METRICS}' | sudo tee /etc/modprobe.d/nsys.conf   # administrators, then reload the driver"


def counters_verdict(parameters: str, is_root: bool) -> Result:
    """Whether the driver keeps the counters for root, from /proc/driver/nvidia/params."""
    what = "RmProfilingAdminOnly of the NVIDIA driver"
    values = dict(line.split(":", 1) for line in parameters.splitlines() if ":" in line)
    value = values.get("RmProfilingAdminOnly", "").strip()
    if value == "1" and not is_root:
        why = "is 1: only root may read GPU metrics (ERR_NVGPUCTRPERM); nsys records all else"
        return warning(what, why, _metrics_remedy())
    if not value:
        return unseen(what, "the driver does not say it")
    return ok(what, f"is {value}: GPU metrics can be recorded")


def cpu_samples(around: Surroundings) -> Iterator[Result]:
    """Whether nsys may sample the CPU, if the site's options ask for it."""
    job, level = around.job, around.read("proc/sys/kernel/perf_event_paranoid")
    if job is None or job.profiler != "nsys" or level is None:
        return
    try:
        options = load_options(job.nsys_options)
    except RequestError:  # the check of nsys says it
        return
    if options.get("sample") != "none":
        yield samples_verdict(level)


def samples_verdict(level: str) -> Result:
    """Whether a user may sample, from /proc/sys/kernel/perf_event_paranoid."""
    what = "kernel.perf_event_paranoid"
    if level.lstrip("-").isdigit() and int(level) > 2:
        remedy = "sudo sysctl kernel.perf_event_paranoid=2   # administrators"
        return warning(what, f"is {level}: nsys takes no samples of the CPU; all else is recorded", remedy)
    return ok(what, f"is {level}: nsys may sample the CPU")


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
