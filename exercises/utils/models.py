"""Builds a model from a file of `configs/models`.

A model file holds the sizes of the architecture. With random weights every kernel, message and byte is the same, so
that a profile of the real sizes needs no download and no licence.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM

from exercises.utils.errors import read_named_file
from harness.common.errors import RequestError
from harness.common.model.model_config import ModelConfig, ModelDefaults

_TRANSFORMERS_5 = int(transformers.__version__.split(".")[0]) >= 5
# The sizes of an architecture that transformers calls as our model files do.
_OF_TRANSFORMERS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
)  # fmt: skip


def load_model_config(path: Path) -> ModelConfig:
    """Read and check a model file. Raises RequestError: the file cannot be read, is not YAML, or has wrong keys."""
    content = read_named_file("--model", path, yaml.safe_load, "YAML", broken=yaml.YAMLError)
    if not isinstance(content, dict):
        raise RequestError(f"--model {path}: must be a mapping of names to values")
    _check_keys(path, "", content, ModelConfig)
    _check_keys(path, "defaults.", content["defaults"], ModelDefaults)
    return ModelConfig(**{**content, "defaults": ModelDefaults(**content["defaults"])})


def _check_keys(path: Path, prefix: str, content: dict[str, Any], kind: type[Any]) -> None:
    allowed = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    for what, names in (("lacks", needed - set(content)), ("has unknown", set(content) - allowed)):
        if names:
            listed = ", ".join(prefix + name for name in sorted(names))
            raise RequestError(f"--model {path}: {what} {listed}")


def hugging_face_config(config: ModelConfig) -> Any:
    shape: dict[str, Any] = {name: getattr(config, name) for name in _OF_TRANSFORMERS}
    if config.architecture != "llama":
        shape["sliding_window"] = None
    # Llama 3 scales rope for long contexts; that changes no shape and no time, and a checkpoint brings
    # its own configuration, so the model files leave it out.
    rope = {"rope_theta": config.rope_theta}
    shape |= {"rope_parameters": {"rope_type": "default", **rope}} if _TRANSFORMERS_5 else rope
    no_generation = {"bos_token_id": 0, "eos_token_id": 1, "use_cache": False}
    return AutoConfig.for_model(config.architecture, **shape, **no_generation)


def build_model(
    config: ModelConfig, checkpoint: Path | None, activation_checkpointing: bool, device: torch.device | None = None
) -> Any:
    """A float32 causal language model, from `checkpoint` or with random weights from torch's current seed.

    Random weights are drawn on `device`: a billion of them take one core many seconds, and a GPU almost no time.
    """
    if checkpoint is None:
        with device or nullcontext():
            model = AutoModelForCausalLM.from_config(hugging_face_config(config))
    else:
        model = _from_checkpoint(checkpoint)
    if activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def _from_checkpoint(checkpoint: Path) -> Any:
    """The model with all its weights from a checkpoint's folder: transformers would invent missing weights."""
    if not (checkpoint / "config.json").is_file():
        raise RequestError(f"--checkpoint {checkpoint}: has no config.json; transformers did not save it")
    dtype = {"dtype" if _TRANSFORMERS_5 else "torch_dtype": torch.float32}
    try:
        model_and_keys: Any = AutoModelForCausalLM.from_pretrained(
            str(checkpoint), local_files_only=True, use_cache=False, output_loading_info=True, **dtype
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"--checkpoint {checkpoint}: its weights cannot be read ({why})") from None
    model, keys = model_and_keys
    lacking = sorted(keys["missing_keys"])
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise RequestError(f"--checkpoint {checkpoint}: lacks {lacking[0]}{more}; random weights are --random-weights")
    return model


def save_random_weights(config: ModelConfig, folder: Path, seed: int) -> None:
    """Write a checkpoint with random weights that depend only on `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build_model(config, None, activation_checkpointing=False).save_pretrained(str(folder))
