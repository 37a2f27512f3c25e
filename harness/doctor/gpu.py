"""The GPUs of a node: the driver, how many, and whether PyTorch can use them. Starts nothing on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness.doctor.container import asked_inside, inside_of
from harness.doctor.result import Result, ok, problem
from harness.doctor.surroundings import Surroundings
from harness.site.detection import visible_gpus

SHOW = "nvidia-smi   # on the node; then the administrators"


def gpus(around: Surroundings) -> Iterator[Result]:
    """The driver and the GPUs that this process may use."""
    if around.job is not None and around.uses_gpus:
        driver = around.read("proc/driver/nvidia/version")
        wanted = around.job.experiment.gpus_per_node or 1
        yield driver_verdict(driver, len(visible_gpus(around.environ)), wanted)


def driver_verdict(version_text: str | None, visible: int, wanted: int) -> Result:
    """Whether there are a driver and enough GPUs. version_text: /proc/driver/nvidia/version."""
    if version_text is None:
        return problem("NVIDIA driver", "there is none on this node", SHOW)
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", version_text)
    what = f"NVIDIA driver {found[1] if found else 'of unknown version'}"
    if visible < wanted:
        ask = "sinfo -o '%P %G %D'   # then gpus: in the site file, or unset CUDA_VISIBLE_DEVICES"
        return problem(what, f"{visible} GPUs can be seen, and a run asks for {wanted}", ask)
    return ok(what, f"{visible} GPUs can be seen, {wanted} asked for")


def torch_and_driver(around: Surroundings) -> Iterator[Result]:
    """Whether PyTorch's CUDA works with the driver."""
    if around.job is not None and around.uses_gpus:
        found = inside_of(asked_inside(around, around.job))
        if found is not None and found["cuda"] is not None:
            yield torch_verdict(found["cuda"])


def torch_verdict(cuda: dict[str, Any]) -> Result:
    """Whether PyTorch can use the GPUs, from what inside.py says of CUDA."""
    what = f"PyTorch for CUDA {cuda['built']}"
    older = "apptainer build --build-arg torch_index=… training.sif containers/training.def   # containers/README.md"
    if not cuda["built"]:
        return problem("PyTorch", "was built for CPUs only, and this node has GPUs", older)
    if cuda["error"] or not cuda["count"]:
        return problem(what, cuda["error"] or "sees no GPU: does the container get --nv?", older)
    return ok(what, f"uses {cuda['count']} GPUs")
