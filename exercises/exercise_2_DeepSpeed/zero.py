"""DeepSpeed's configuration, checked against the command line, and accelerate with DeepSpeed on GPUs or CPUs.

Knows DeepSpeed's configuration file; knows nothing of models or data.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import deepspeed  # type: ignore[import-untyped]
from accelerate import Accelerator, DeepSpeedPlugin  # type: ignore[import-untyped]
from accelerate.utils import InitProcessGroupKwargs  # type: ignore[import-untyped]

from exercises.utils.arguments import TrainingArguments
from exercises.utils.errors import read_named_file
from exercises.utils.faults import settings
from harness.common.errors import RequestError


def read_config(path: Path) -> dict[str, Any]:
    """DeepSpeed's configuration from its JSON file. Raises RequestError: the file cannot be read, is not JSON, or has
    no ZeRO stage."""
    content = read_named_file("--deepspeed-config", path, json.loads, "JSON")
    if "stage" not in content.get("zero_optimization", {}):
        raise RequestError(f"--deepspeed-config {path}: has no zero_optimization.stage")
    return dict(content)


def fill_in(config: dict[str, Any], arguments: TrainingArguments) -> dict[str, Any]:
    """`config` with `auto` replaced by the command line's values. Raises RequestError: the file and the command line
    contradict each other."""
    filled = dict(config)
    accumulation = arguments.gradient_accumulation_steps
    for key, flag, value in (
        ("train_micro_batch_size_per_gpu", "--micro-batch-size", arguments.micro_batch_size),
        ("gradient_accumulation_steps", "--gradient-accumulation-steps", accumulation),
    ):
        filled[key] = value if config.get(key, "auto") == "auto" else config[key]
        _require_same(f"{flag} {value}", filled[key] == value, f"{key}: {config.get(key)}")
    precision, recompute = uses_bf16(config), checkpoints_activations(config)
    _require_same("--mixed-precision", precision or not arguments.mixed_precision, "bf16 disabled")
    _require_same("--mixed-precision tf32", not precision or arguments.precision != "tf32", "bf16 enabled")
    _apply_faults(filled, arguments)
    recompute_agrees = recompute or not arguments.activation_checkpointing
    _require_same("--activation-checkpointing", recompute_agrees, "no activation_checkpointing")
    return filled


def _apply_faults(config: dict[str, Any], arguments: TrainingArguments) -> None:
    zero = config["zero_optimization"]
    size_bytes = settings.bucket_bytes(arguments.faults, None)
    if size_bytes is not None:  # DeepSpeed counts parameters
        gradients = size_bytes // (2 if uses_bf16(config) else 4)
        config["zero_optimization"] = {**zero, "reduce_bucket_size": max(1, gradients)}


def _require_same(flag: str, agrees: bool, in_file: str) -> None:
    if not agrees:
        raise RequestError(f"{flag}: the file of --deepspeed-config says {in_file}")


def uses_bf16(config: dict[str, Any]) -> bool:
    return bool(config.get("bf16", {}).get("enabled"))


def checkpoints_activations(config: dict[str, Any]) -> bool:
    """True when the configuration computes activations again in the backward pass."""
    return "activation_checkpointing" in config


def make_accelerator(config: dict[str, Any], arguments: TrainingArguments) -> Accelerator:
    """accelerate with DeepSpeed, on NCCL with GPUs and on gloo without."""
    # DeepSpeed calls PyTorch's collectives by deprecated names; a student cannot change that.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # accelerate refuses a launcher's file with settings of DeepSpeed's file. DeepSpeed's file is the one that counts.
    os.environ.pop("ACCELERATE_CONFIG_DS_FIELDS", None)
    mark_by_pytorch()
    handlers = []
    if arguments.on_cpu:
        # DeepSpeed would first compile a shared-memory extension for a minute, and gloo does not use it.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # A launcher may set this variable for exercise 1, and accelerate would not use DeepSpeed with it.
        os.environ.pop("ACCELERATE_USE_CPU", None)
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    plugin = DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=config["zero_optimization"]["stage"] == 3)
    return Accelerator(
        device_placement=False,  # DeepSpeed places the model, and a batch is placed where it is loaded
        deepspeed_plugin=plugin,
        mixed_precision="bf16" if uses_bf16(config) else "no",
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        kwargs_handlers=handlers,
    )


def mark_by_pytorch() -> None:
    """DeepSpeed marks its ranges by PyTorch. It needs a newer `nvtx` package than the nsys of most sites can record."""
    deepspeed.get_accelerator().supports_nvtx_domain = False
