"""What DeepSpeed needs beside the training loop: its configuration checked against the command line, and CPUs.

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
from harness.common.errors import RequestError


def read_config(path: Path) -> dict[str, Any]:
    """DeepSpeed's configuration from its JSON file. Raises RequestError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"--deepspeed-config {path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise RequestError(f"--deepspeed-config {path}: is not JSON ({error})") from None
    if "stage" not in content.get("zero_optimization", {}):
        raise RequestError(f"--deepspeed-config {path}: has no zero_optimization.stage")
    return dict(content)


def fill_in(config: dict[str, Any], arguments: TrainingArguments) -> dict[str, Any]:
    """`config` with `auto` replaced by the command line's values.

    Raises RequestError where file and command line contradict each other: a run must be what both say.
    """
    filled = dict(config)
    for key, flag, value in (
        ("train_micro_batch_size_per_gpu", "--micro-batch-size", arguments.micro_batch_size),
        (
            "gradient_accumulation_steps",
            "--gradient-accumulation-steps",
            arguments.gradient_accumulation_steps,
        ),
    ):
        filled[key] = value if config.get(key, "auto") == "auto" else config[key]
        _require_same(f"{flag} {value}", filled[key] == value, f"{key}: {config.get(key)}")
    precision, recompute = uses_bf16(config), checkpoints_activations(config)
    _require_same("--mixed-precision", precision or not arguments.mixed_precision, "bf16 disabled")
    _require_same(
        "--activation-checkpointing",
        recompute or not arguments.activation_checkpointing,
        "no activation_checkpointing",
    )
    return filled


def _require_same(asked: str, agrees: bool, in_file: str) -> None:
    if not agrees:
        raise RequestError(f"{asked}: the file of --deepspeed-config says {in_file}")


def uses_bf16(config: dict[str, Any]) -> bool:
    """True when the configuration trains in bfloat16."""
    return bool(config.get("bf16", {}).get("enabled"))


def checkpoints_activations(config: dict[str, Any]) -> bool:
    """True when the configuration computes activations again in the backward pass."""
    return "activation_checkpointing" in config


def make_accelerator(config: dict[str, Any], arguments: TrainingArguments) -> Accelerator:
    """accelerate with DeepSpeed, on NCCL with GPUs and on gloo without."""
    # DeepSpeed calls PyTorch's collectives by names that are about to change; nobody here can do anything about it.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    # accelerate refuses a launcher's file that names what DeepSpeed's file names; the latter is what we go by.
    os.environ.pop("ACCELERATE_CONFIG_DS_FIELDS", None)
    handlers = []
    if arguments.on_cpu:
        _prepare_cpu()
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    plugin = DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=config["zero_optimization"]["stage"] == 3)
    return Accelerator(
        deepspeed_plugin=plugin,
        mixed_precision="bf16" if uses_bf16(config) else "no",
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        kwargs_handlers=handlers,
    )


def _prepare_cpu() -> None:
    # DeepSpeed would compile a shared-memory extension first, a minute's work that gloo has no use for.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # accelerate takes this one as "no DeepSpeed"; the DDP exercise needs it, so a launcher may well set it.
    os.environ.pop("ACCELERATE_USE_CPU", None)
