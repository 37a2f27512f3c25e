"""From a file of `configs/models` to a model: its sizes, its FLOPs per token, and the thing itself.

A model file holds the architecture's numbers, so that a profile of the real sizes needs no download and no
licence: with random weights every kernel, message and byte is the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM

from exercises.utils.errors import TrainingRequestError

_TRANSFORMERS_5 = int(transformers.__version__.split(".")[0]) >= 5


@dataclass(frozen=True)
class Defaults:
    """What a run takes when it is not told: tokens per example when fine-tuning and pre-training, batch."""

    seq_length: int
    pretrain_seq_length: int
    micro_batch_size: int


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One file of configs/models. Field names are Hugging Face's where it has one."""

    name: str
    hub_name: str  # the last part of the name on the hub; it names the run
    architecture: str  # Hugging Face's model_type: llama, mistral, mixtral
    tiny: bool = False  # made for a machine without GPU
    tiny_twin: str | None = None  # what a machine without GPU trains in its place
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_local_experts: int = 1
    num_experts_per_tok: int = 1
    defaults: Defaults

    def parameters(self) -> int:
        """All parameters, embeddings included."""
        embedding = self.vocab_size * self.hidden_size
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        output = 0 if self.tie_word_embeddings else embedding
        return (
            embedding + output + norms + self.num_hidden_layers * self._layer_weights(self.num_local_experts)
        )

    def flops_per_token(self, seq_length: int) -> float:
        """Model FLOPs of forward and backward per token: 6·N + 12·L·h·S.

        N: parameters that multiply a token (of a mixture, the experts chosen); h: heads × head size. Source:
        appendix B of PaLM (Chowdhery et al. 2022); attention is counted whole, not only its causal half.
        """
        matmul = self.num_hidden_layers * self._layer_weights(self.num_experts_per_tok)
        matmul += self.vocab_size * self.hidden_size
        attention = self.num_hidden_layers * self.num_attention_heads * self.head_dim * seq_length
        return 6.0 * matmul + 12.0 * attention

    def _layer_weights(self, experts: int) -> int:
        query = self.hidden_size * self.num_attention_heads * self.head_dim
        key = self.hidden_size * self.num_key_value_heads * self.head_dim
        feed_forward = 3 * self.hidden_size * self.intermediate_size
        router = self.hidden_size * self.num_local_experts if self.num_local_experts > 1 else 0
        return 2 * query + 2 * key + experts * feed_forward + router

    def hugging_face_config(self) -> Any:
        """The transformers configuration of this model."""
        shape: dict[str, Any] = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "use_cache": False,  # no generation here
        }
        if self.num_local_experts > 1:
            shape |= {
                "num_local_experts": self.num_local_experts,
                "num_experts_per_tok": self.num_experts_per_tok,
            }
        if self.architecture != "llama":
            shape["sliding_window"] = None
        return AutoConfig.for_model(self.architecture, **shape, **self._rope())

    def _rope(self) -> dict[str, Any]:
        # Llama 3 scales rope for long contexts; that changes no shape and no time, and a checkpoint brings
        # its own configuration, so the model files leave it out.
        rope = {"rope_theta": self.rope_theta}
        return {"rope_parameters": {"rope_type": "default", **rope}} if _TRANSFORMERS_5 else rope


def load_model_config(path: Path) -> ModelConfig:
    """Read and check a model file. Raises TrainingRequestError with the file and what is wrong in it."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainingRequestError(f"--model {path}: cannot be read ({error.strerror})") from None
    except yaml.YAMLError as error:
        raise TrainingRequestError(f"--model {path}: is not YAML ({error})") from None
    if not isinstance(content, dict):
        raise TrainingRequestError(f"--model {path}: must be a mapping of names to values")
    _check_keys(path, "", content, ModelConfig)
    _check_keys(path, "defaults.", content["defaults"], Defaults)
    return ModelConfig(**{**content, "defaults": Defaults(**content["defaults"])})


def _check_keys(
    path: Path, prefix: str, content: dict[str, Any], kind: type[ModelConfig] | type[Defaults]
) -> None:
    known = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    for what, names in (("lacks", needed - set(content)), ("has unknown", set(content) - known)):
        if names:
            listed = ", ".join(prefix + name for name in sorted(names))
            raise TrainingRequestError(f"--model {path}: {what} {listed}")


def build_model(
    config: ModelConfig,
    checkpoint: Path | None,
    activation_checkpointing: bool,
    device: torch.device | None = None,
) -> Any:
    """A float32 causal language model, from `checkpoint` or with random weights from torch's current seed.

    Random weights are drawn on `device`: one core draws a billion of them in many seconds, a GPU in an instant.
    """
    if checkpoint is None:
        with device or nullcontext():
            model = AutoModelForCausalLM.from_config(config.hugging_face_config())  # type: ignore[no-untyped-call]
    else:
        model = _from_checkpoint(checkpoint)
    if activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def _from_checkpoint(checkpoint: Path) -> Any:
    """The model of a checkpoint's folder, every weight from there: transformers would make up what is missing."""
    if not (checkpoint / "config.json").is_file():
        raise TrainingRequestError(
            f"--checkpoint {checkpoint}: has no config.json; transformers did not save it"
        )
    dtype = {"dtype" if _TRANSFORMERS_5 else "torch_dtype": torch.float32}
    try:
        both: Any = AutoModelForCausalLM.from_pretrained(
            str(checkpoint), local_files_only=True, use_cache=False, output_loading_info=True, **dtype
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrainingRequestError(f"--checkpoint {checkpoint}: its weights cannot be read ({why})") from None
    model, loaded = both
    lacking = sorted(loaded["missing_keys"])
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise TrainingRequestError(
            f"--checkpoint {checkpoint}: lacks {lacking[0]}{more}; random weights are --random-weights"
        )
    return model


def save_random_weights(config: ModelConfig, folder: Path, seed: int) -> None:
    """Write a checkpoint with random weights that depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build_model(config, None, activation_checkpointing=False).save_pretrained(str(folder))
