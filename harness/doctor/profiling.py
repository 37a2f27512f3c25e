"""What records: nsys and the options that it understands, the GPU's counters, samples of the CPU. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

from harness.common.errors import RequestError
from harness.doctor.container import ask_inside
from harness.doctor.result import IN_JOB, Result, ok, problem, unseen, warning
from harness.doctor.surroundings import Surroundings
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

NSYS_S = 60.0
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
        yield problem(
            "nsys options of the site", str(error), "ls configs/nsys   # then nsys: in the site file"
        )
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
        build = (
            "less containers/README.md   # how nsys gets into the image; or profiler: torch in the site file"
        )
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
    yield counters_verdict(parameters, is_root=os.geteuid() == 0)
    found = installed_nsys(around) if around.which("nsys") else ""
    if isinstance(found, Nsys) and _asks_for_metrics(around):
        names = [name for name in ("gpu-metrics-devices", "gpu-metrics-device") if name in found.flags]
        flag = f"--{names[0]}=help" if names else ""
        if flag and (why := blindness(_text(around, flag))):
            yield warning(
                f"nsys profile {flag}", f"{why}: nsys records all but GPU metrics", _metrics_remedy()
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
    return (
        f"echo '{NO_METRICS}' | sudo tee /etc/modprobe.d/nsys.conf   # administrators, then reload the driver"
    )


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
