"""A model as its file of configs/models describes it: sizes, parameters, FLOPs; and the precisions it computes in.

Knows neither how the file is read nor how the network is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What LoRA adapts: the matrices of a layer, by transformers's names."""

FP8_BLOCK = 16
"""What each size of an fp8 product is a multiple of: the tensor cores take it in such blocks."""


@dataclass(frozen=True, kw_only=True)
class ModelDefaults:
    """A run's defaults: tokens per sample in fine-tuning and in pre-training, samples per rank. The other sizes of the
    micro-batch are for what needs more memory; None: the same."""

    seq_length: int
    pretrain_seq_length: int
    micro_batch_size: int
    fp32_micro_batch_size: int | None = None
    pretrain_micro_batch_size: int | None = None

    def micro_batch(self, in_bf16: bool, pretrains: bool = False) -> str:
        """The field with the samples per rank and forward pass: the smallest that holds."""
        names = ["pretrain_micro_batch_size"] * pretrains + ["fp32_micro_batch_size"] * (not in_bf16)
        known = [name for name in [*names, "micro_batch_size"] if getattr(self, name) is not None]
        return min(known, key=lambda name: int(getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One file of configs/models. Field names are Hugging Face's where it has one."""

    name: str
    hub_name: str  # the last part of the name on the hub; it names the run
    architecture: str  # Hugging Face's model_type: llama, mistral
    tiny: bool = False  # made for a machine without GPU: thresholds are scaled down to it
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
    defaults: ModelDefaults

    def parameters(self) -> int:
        """All parameters, embeddings included."""
        return sum(self.gradients())

    def lora_parameters(self, rank: int) -> int:
        """Parameters of LoRA's adapters of this rank."""
        return sum(self.gradients(rank))

    def gradients(self, lora: int | None = None) -> list[int]:
        """The numbers in each trained tensor, in the order of the model. lora: rank of the adapters that are trained,
        two matrices of so many rows or columns beside each of LORA_MODULES."""
        matrices = self._matrices()
        if lora:
            return [lora * size for each in matrices * self.num_hidden_layers for size in reversed(each)]
        norm, embedding = self.hidden_size, self.vocab_size * self.hidden_size
        layer = [*(rows * columns for rows, columns in matrices), norm, norm]
        output = [] if self.tie_word_embeddings else [embedding]
        return [embedding, *layer * self.num_hidden_layers, norm, *output]

    def lora_flops_per_token(self, seq_length: int, rank: int) -> float:
        """As `flops_per_token`, where only LoRA's adapters are trained: 4 per frozen weight, 6 per adapter's, and
        attention whole. The first layer's inputs need no gradient: 2 less for each weight that reads them."""
        whole = self.flops_per_token(seq_length)
        heads = self.num_attention_heads + 2 * self.num_key_value_heads
        first = self.hidden_size * (heads * self.head_dim + 3 * rank)
        return whole - 2.0 * self._weights_of_a_token() + 6.0 * self.lora_parameters(rank) - 2.0 * first

    def flops_per_token(self, seq_length: int) -> float:
        """Model FLOPs of forward and backward per token: 6·N + 12·L·h·S, attention counted whole.

        N are the weights that multiply a token, L the layers, h is heads × head size, and S `seq_length`. Source:
        Chowdhery et al., PaLM, 2022, appendix B.
        """
        attention = self.num_hidden_layers * self.num_attention_heads * self.head_dim * seq_length
        return 6.0 * self._weights_of_a_token() + 12.0 * attention

    def _weights_of_a_token(self) -> int:
        layer = sum(rows * columns for rows, columns in self._matrices())
        return self.num_hidden_layers * layer + self.vocab_size * self.hidden_size

    def _matrices(self) -> list[tuple[int, int]]:
        """The rows and columns of a layer's matrices."""
        hidden, inner = self.hidden_size, self.num_attention_heads * self.head_dim
        keys, wide = self.num_key_value_heads * self.head_dim, self.intermediate_size
        attention = [(inner, hidden), (keys, hidden), (keys, hidden), (hidden, inner)]
        return [*attention, (wide, hidden), (wide, hidden), (hidden, wide)]


Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp"]
"""What data parallelism shards: nothing, what ZeRO's stage of this number does, or what FSDP2 does: as stage 3, with
float32 parameters for a master copy."""
Precision = Literal["fp32", "tf32", "bf16", "fp8"]


DTYPES: Mapping[Precision, str] = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp8": "float8"}
"""As a training's metrics have it. TF32 and fp8 are of the products alone: weights stay float32."""

PRECISION_OF: Mapping[str, str] = {dtype: precision for precision, dtype in DTYPES.items()} | {"float16": "fp16"}
"""The other way round, as the device table names it."""
