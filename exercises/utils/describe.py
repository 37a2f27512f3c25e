"""The first line of a rank's metrics, from the arguments, the model and the device, with its measured peak."""

from __future__ import annotations

import torch

from exercises.utils.arguments import TrainingArguments
from harness.common.model.model_config import DTYPES, ModelConfig, Precision
from harness.common.run_folder.metrics_lines import StartLine
from harness.observe import metrics
from harness.observe.metrics import backend_name, rank_of_process

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
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    torch.matmul(left, right)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def describe(
    arguments: TrainingArguments,
    config: ModelConfig,
    seq_length: int,
    device: torch.device,
    *,
    precision: Precision | None = None,
    lora: int | None = None,
) -> StartLine:
    """What this process trains, how and on which device. `precision`: where not --mixed-precision decides;
    `lora`: the rank of adapters that are trained in the weights' place."""
    rank, world_size, local_rank = rank_of_process()
    trained = config.lora_parameters(lora) if lora else 0
    dtype = DTYPES[precision or arguments.precision]
    return StartLine(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        backend=backend_name(),
        device=device.type,
        model=config.name,
        parameters=config.parameters() + trained,
        weights="random" if arguments.checkpoint is None else str(arguments.checkpoint),
        dtype=dtype,
        seq_length=seq_length,
        micro_batch_size=arguments.micro_batch_size,
        gradient_accumulation_steps=arguments.gradient_accumulation_steps,
        flops_per_token=config.lora_flops_per_token(seq_length, lora) if lora else config.flops_per_token(seq_length),
        peak_flops_per_s=measured_peak_flops_per_s(device, dtype),
        window=arguments.window,
        trained_parameters=trained or None,
    )
