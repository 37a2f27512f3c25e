"""What a request needs of the GPUs, compared with the device table: TF32, fp8, one memory with the host.

Knows the site's name for its GPUs, and no exercise by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.experiment.base import Experiment
from harness.experiment.training import Training
from harness.launch.exercises.base import DeviceKind, Target
from harness.site.site import Site
from harness.theory.devices import Device, find_device


class Need(NamedTuple):
    """Something that a flag asks of a GPU.

    met: by a device of the table. who: devices that can, for people. instead: what works on this one.
    """

    flag: str
    met: Callable[[Device], bool]
    who: str
    instead: Callable[[Device], str]


def device_misfits(asked: Training, target: Target) -> Iterator[str]:
    """Why the site's devices cannot do it, one sentence each; none if the table does not have them."""
    site, found = target.site, find_device(target.site.gpus.name)
    if target.device == "cpu":
        if asked.precision in ("tf32", "fp8"):
            other = "fp32" if asked.precision == "tf32" else "bf16"
            yield (
                f"--precision {asked.precision} works on GPUs only, and site {site.name} runs on CPUs: use "
                f"--precision {other}, or a --site with GPUs"
            )
        return
    for need in _needs(asked):
        if found is not None and not need.met(found):
            yield (
                f"{need.flag} needs {need.who}, and site {site.name} has {site.gpus.name}: {need.instead(found)}, or "
                "use another --site"
            )


def device_doubts(asked: Experiment, site: Site, device: DeviceKind) -> Iterator[str]:
    """The same where the table does not have the site's GPUs, so that nobody can say it before the training starts."""
    if device == "cuda" and isinstance(asked, Training) and find_device(site.gpus.name) is None:
        for need in _needs(asked):
            yield (
                f"{need.flag} needs {need.who}, but the GPUs of site {site.name} are not known (gpus.name): the "
                "training checks them when it starts"
            )


def _needs(asked: Training) -> Iterator[Need]:
    if asked.precision == "tf32":
        who = "GPUs from Ampere on (A100, H100 and newer)"
        yield Need("--precision tf32", lambda d: "tf32" in d.tflops, who, lambda d: "use --precision fp32")
    if asked.precision == "fp8":
        who = "GPUs from Hopper on (H100, H200, GH200 and newer)"
        yield Need("--precision fp8", lambda d: "fp8" in d.tflops, who, _nearest_to_fp8)
    if getattr(asked, "unified_memory", False):
        yield Need("--unified-memory", lambda d: "GH200" in d.match, "GH200", lambda d: "leave it out")


def _nearest_to_fp8(device: Device) -> str:
    return f"use --precision {'bf16' if 'bf16' in device.tflops else 'fp32'}"
