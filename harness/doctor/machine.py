"""The machine's GPUs as PyTorch sees them. Measures no speed."""

from __future__ import annotations

from harness.common.paths import README_OF_IMAGES
from harness.doctor.container import asked_inside, inside_of
from harness.doctor.surroundings import CheckResult, Surroundings, ok, problem

_DOES_IT = {"ROCm": "check that the container sees /dev/kfd", "CUDA": "check that the container is started with --nv"}


def torch_and_driver(around: Surroundings) -> CheckResult | None:
    """Whether PyTorch's CUDA or ROCm works with the driver, and sees as many GPUs as a run asks for."""
    inside = inside_of(asked_inside(around, around.job))
    if inside is None or inside["cuda"] is None:
        return None
    cuda = inside["cuda"]
    what = f"PyTorch for {cuda['platform']} {cuda['built']}"
    older = "apptainer build --build-arg torch_index=… training.sif containers/training.def   # "
    older += README_OF_IMAGES
    if not cuda["built"]:
        return problem("PyTorch", "was built for CPUs only, and this node has GPUs", older)
    if cuda["error"] or not cuda["count"]:
        return problem(what, cuda["error"] or f"sees no GPU: {_DOES_IT[cuda['platform']]}", older)
    wanted = around.job.experiment.gpus_per_node or 1
    if cuda["count"] < wanted:
        ask = "sinfo -o '%P %G %D'   # then gpus: in the site file, or unset CUDA_VISIBLE_DEVICES"
        return problem(what, f"sees {cuda['count']} GPUs, but a run asks for {wanted}", ask)
    return ok(what, f"sees {cuda['count']} GPUs, {wanted} requested")
