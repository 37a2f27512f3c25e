"""Words that terminal, page and timeline share: causes of idle time, the work of a device, the parts of a step, the
quality of a recording. Computes no numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.analysis.process.host_calls import HostCause
from harness.analysis.summary import CodeLocation, Device, KernelTime, Steps, Summary
from harness.common.display.format import duration

COMPILED = re.compile("triton_|cpp_fused_|^CompiledFunction")
MUCH_BETWEEN = 0.05  # of the mean step
NO_GPUS = ("MTIA", "HPU")  # how the names of devices begin that are no GPUs

_FIELDS = {
    "idle_ns": "idle time",
    "idle_causes": "causes of idle time",
    "busy_fraction": "share of busy time",
    "communication_ns": "time of communication",
    "exposed_communication_ns": "exposed communication",
    "overlapped_communication_ns": "overlapped communication",
    "overlap_fraction": "overlap",
    "collectives.waiting_ns": "waiting in collectives",
    "collectives.bus_bandwidth_gb_per_s": "bus bandwidth of collectives",
    "collective_fits.alpha_ns, beta_ns_per_byte": "latency α and bandwidth 1/β",
    "pop": "efficiency as POP defines it",
    "findings": "the causes of lost time",
    "findings.tiny-kernels": "the loss to small operators",
    "findings.host": "the causes of lost time on the host",
    "replay.what_ifs": "predictions with one thing changed",
    "job_time": "where the job's time went",
    "pipeline.stages, expected_bubble_fraction": "the pipeline's stages and its expected bubble",
}
_ON_CPU = {cause.label: cause.on_cpu for cause in HostCause}


def cause_word(cause: str, cpu: bool) -> str:
    """The name under which a cause of idle time is shown.

    >>> cause_word("launch-bound", cpu=True), cause_word("launch-bound", cpu=False)
    ('between operators', 'launch-bound')
    """
    return _ON_CPU.get(cause, cause) if cpu else cause


def code_place(code_location: CodeLocation) -> str:
    """A place in a program as one text.

    >>> code_place(CodeLocation(file="/home/me/train.py", line=12, function="main"))
    'main (/home/me/train.py:12)'
    """
    file = code_location.file if code_location.line is None else f"{code_location.file}:{code_location.line}"
    return f"{code_location.function} ({file})" if file else code_location.function


def short_place(code_location: CodeLocation) -> str:
    """As `code_place`, with the last folder and the name of the file alone."""
    return code_place(code_location.model_copy(update={"file": "/".join(code_location.file.split("/")[-2:])}))


def is_cpu(device: Device) -> bool:
    """Whether the device is a CPU, where operators take the place of kernels."""
    return device.device_kind == "cpu"


def accelerator(devices: Sequence[Device]) -> str | None:
    """What the devices are, where they are neither CPUs nor GPUs."""
    return next((kind for kind in NO_GPUS for device in devices if (device.name or "").startswith(kind)), None)


def is_compiled(kernels: Sequence[KernelTime]) -> bool:
    """Whether torch.compile made some of these kernels, or of these operators of a CPU."""
    return any(COMPILED.search(kernel.name) for kernel in kernels)


def are_cpus(devices: Sequence[Device]) -> bool:
    """Whether all devices are CPUs (a job has one kind of device)."""
    return bool(devices) and all(map(is_cpu, devices))


def work_word(devices: Sequence[Device]) -> str:
    """What the devices run: kernels, or operators on CPUs."""
    return "operators" if are_cpus(devices) else "kernels"


def device_names(s: Summary) -> str:
    """The names of the job's devices, as the trace or else the training gives them."""
    traced = {d.name for d in s.devices if d.name}
    return ", ".join(sorted(traced or {t.device_name for t in s.training if t.device_name}))


def host_names(s: Summary) -> str:
    """The job's first four hosts; empty where no host is known."""
    return f"hosts {', '.join(s.hosts[:4])}{' …' if len(s.hosts) > 4 else ''}" if s.hosts else ""


def field_word(field: str) -> str:
    """The name under which people read a field of the summary that may be withheld.

    >>> field_word("collectives.waiting_ns"), field_word("of_a_later_version")
    ('waiting in collectives', 'of a later version')
    """
    return _FIELDS.get(field, field.replace("_", " "))


def recording(s: Summary) -> str:
    """The verdict on the recording; a run without any recording has no verdict."""
    if s.sources or s.quality.problems:
        return s.quality.verdict.value
    return "none was asked for" if (s.run or {}).get("expects") == [] else "none"


def step_parts(steps: Steps) -> str:
    """How the mean step divides into its mark and what comes after it; empty if that is little."""
    if not steps.mean_ns or not steps.between_ns or steps.between_ns < MUCH_BETWEEN * steps.mean_ns:
        return ""
    inside = duration(steps.mean_ns - steps.between_ns)
    return f"{inside} inside its mark and {duration(steps.between_ns)} between the steps"
