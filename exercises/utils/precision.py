"""--mixed-precision: what matrix products are computed in, as far as PyTorch itself decides it."""

from __future__ import annotations

import torch

from harness.common.errors import RequestError
from harness.common.model.model_config import Precision

# The first compute capability whose tensor cores can.
NEEDS = {"tf32": ((8, 0), "Ampere (A100)"), "fp8": ((8, 9), "Hopper (H100)")}


def set_precision(precision: Precision, device: torch.device) -> None:
    """Let float32 products of this process be exact, or on tensor cores with `tf32`.

    Exact is PyTorch's own default too, but not in NVIDIA's containers, which set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.

    Raises RequestError: the device cannot.
    """
    if precision == "tf32" and device.type == "cpu":
        raise RequestError(
            "--mixed-precision tf32: only GPUs have TF32, and this training runs on CPUs: use --mixed-precision fp32"
        )
    if precision in NEEDS and device.type == "cuda":
        least, name = NEEDS[precision]
        if torch.cuda.get_device_capability(device) < least:
            other = "fp32" if precision == "tf32" else "bf16"
            raise RequestError(
                f"--mixed-precision {precision} needs GPUs from {name} on, and this is "
                f"{torch.cuda.get_device_name(device)}: use --mixed-precision {other}"
            )
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
