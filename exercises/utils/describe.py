"""The first line of a rank's metrics, from the arguments, the model and the device."""

from __future__ import annotations

import torch

from exercises.utils.arguments import TrainingArguments
from exercises.utils.peak import measured_peak_flops_per_s
from harness.common.metrics_lines import StartLine
from harness.common.model_config import ModelConfig
from harness.common.precision import DTYPES, Precision
from harness.observe.metrics import backend_name, rank_of_process


def describe(
    arguments: TrainingArguments,
    config: ModelConfig,
    seq_length: int,
    device: torch.device,
    *,
    precision: Precision | None = None,
    lora: int | None = None,
) -> StartLine:
    """What this process trains, how and on which device. `precision`: where not --precision decides;
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
        flops_per_token=config.lora_flops_per_token(seq_length, lora)
        if lora
        else config.flops_per_token(seq_length),
        peak_flops_per_s=measured_peak_flops_per_s(device, dtype),
        window=arguments.window,
        trained_parameters=trained or None,
    )
