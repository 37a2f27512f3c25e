"""The device's peak rate: that of the fastest of a few large matrix multiplications, measured on the device itself.

Published peak rates hold for standard clocks and a certain number of multiprocessors; this one holds for this device.
"""

from __future__ import annotations

import torch

from harness.observe import metrics

REPEATS = 10
# Large enough to fill the device, small enough to leave training its memory: 400, 800 and 200 MB.
SIZES = {"bfloat16": 8192, "tf32": 8192, "float32": 4096}


def measured_peak_flops_per_s(device: torch.device, dtype: str) -> float | None:
    """FLOP/s of a square GEMM in `dtype` (bfloat16, float32, or tf32 where PyTorch is set to it).

    None in others, without CUDA, without memory for it, and where it would count as the training's (unified memory).
    """
    if device.type != "cuda" or dtype not in SIZES or metrics.other_allocators:
        return None
    size, kind = SIZES[dtype], torch.bfloat16 if dtype == "bfloat16" else torch.float32
    try:
        left, right = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
        fastest_ms = min(_matmul_ms(left, right) for _ in range(REPEATS))
    except torch.cuda.OutOfMemoryError:
        return None
    finally:
        # The training's peak memory must not include this measurement.
        torch.cuda.reset_peak_memory_stats(device)
    return 2.0 * size**3 / (fastest_ms / 1e3)


def _matmul_ms(left: torch.Tensor, right: torch.Tensor) -> float:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    torch.matmul(left, right)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
