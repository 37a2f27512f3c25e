"""The GPUs of a node: the driver, how many, and whether PyTorch can use them. Starts nothing on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from harness.doctor.container import asked_inside, inside_of
from harness.doctor.result import Result, ok, problem
from harness.doctor.surroundings import Surroundings
from harness.site.detection import visible_gpus

SHOW = "nvidia-smi   # on the node; then the administrators"
SHOW_AMD = "rocm-smi   # on the node; then the administrators"
_MOST_KFD_NODES = 256  # CPUs and GPUs


def gpus(around: Surroundings) -> Iterator[Result]:
    """The driver and the GPUs that this process may use."""
    if around.job is not None and around.uses_gpus:
        wanted = around.job.experiment.gpus_per_node or 1
        if around.site.gpus.vendor == "amd":
            yield amd_verdict(kfd_gpus(around), wanted)
            return
        driver = around.read("proc/driver/nvidia/version")
        yield driver_verdict(driver, len(visible_gpus(around.environ)), wanted)


def driver_verdict(version_text: str | None, visible: int, wanted: int) -> Result:
    """Whether there are a driver and enough GPUs. version_text: /proc/driver/nvidia/version."""
    if version_text is None:
        return problem("NVIDIA driver", "there is none on this node", SHOW)
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", version_text)
    what = f"NVIDIA driver {found[1] if found else 'of unknown version'}"
    if visible < wanted:
        ask = "sinfo -o '%P %G %D'   # then gpus: in the site file, or unset CUDA_VISIBLE_DEVICES"
        return problem(what, f"{visible} GPUs are visible, but a run asks for {wanted}", ask)
    return ok(what, f"{visible} GPUs are visible, {wanted} requested")


def kfd_gpus(around: Surroundings) -> int | None:
    """How many GPUs AMD's driver shows, in its list of CPUs and GPUs; None: there is no such driver."""
    folder = "sys/class/kfd/kfd/topology/nodes"
    listed = (around.read(f"{folder}/{node}/gpu_id") for node in range(_MOST_KFD_NODES))
    found = list(takewhile(lambda text: text is not None, listed))
    return sum(text != "0" for text in found) if found else None


def amd_verdict(visible: int | None, wanted: int) -> Result:
    """Whether there are AMD's driver and enough GPUs."""
    if visible is None:
        return problem("AMD driver", "there is none on this node", SHOW_AMD)
    if visible < wanted:
        ask = "sinfo -o '%P %G %D'   # then gpus: in the site file"
        return problem("AMD driver", f"shows {visible} GPUs, but a run asks for {wanted}", ask)
    return ok("AMD driver", f"shows {visible} GPUs, {wanted} requested")


def torch_and_driver(around: Surroundings) -> Iterator[Result]:
    """Whether PyTorch's CUDA works with the driver."""
    if around.job is not None and around.uses_gpus:
        found = inside_of(asked_inside(around, around.job))
        if found is not None and found["cuda"] is not None:
            yield torch_verdict(found["cuda"])


_DOES_IT = {
    "ROCm": "check that the container sees /dev/kfd",
    "CUDA": "check that the container is started with --nv",
}


def torch_verdict(cuda: dict[str, Any]) -> Result:
    """Whether PyTorch can use the GPUs, from what inside.py says of CUDA or ROCm."""
    what = f"PyTorch for {cuda['platform']} {cuda['built']}"
    older = "apptainer build --build-arg torch_index=… training.sif containers/training.def   # containers/README.md"
    if not cuda["built"]:
        return problem("PyTorch", "was built for CPUs only, and this node has GPUs", older)
    if cuda["error"] or not cuda["count"]:
        return problem(what, cuda["error"] or f"sees no GPU: {_DOES_IT[cuda['platform']]}", older)
    return ok(what, f"uses {cuda['count']} GPUs")
