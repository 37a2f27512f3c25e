"""FLOPs of a training step, and the bubble of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from harness.common.model.model_config import ModelConfig

RECOMPUTED = 4 / 3  # a second forward pass: 8 FLOPs per weight and token in place of 6


@dataclass(frozen=True, slots=True)
class FlopsPerToken:
    """Forward and backward pass, per token. matrices: 6 per weight that multiplies it; attention: 12·L·h·S. rule: 6 per
    parameter, embeddings and norms included, which is known as 6N."""

    matrices: float
    attention: float
    rule: float

    @property
    def total(self) -> float:
        return self.matrices + self.attention

    @property
    def over_rule(self) -> float:
        """The exact count as a multiple of 6N."""
        return self.total / self.rule


@cache
def flops_per_token(model: ModelConfig, seq_length: int, lora: int | None = None) -> FlopsPerToken:
    """The model's own count, in its two parts. lora: rank of the adapters that are trained, and not the weights.
    Sources: Kaplan et al., Scaling Laws, 2020, section 2.1 (6N); Chowdhery et al., PaLM, 2022, appendix B (attention,
    counted whole although the mask halves it). A FLOP counter over the real layers counts the same: docs/theory.md."""
    total = model.lora_flops_per_token(seq_length, lora) if lora else model.flops_per_token(seq_length)
    attention = 12.0 * model.num_hidden_layers * model.num_attention_heads * model.head_dim * seq_length
    return FlopsPerToken(total - attention, attention, 6.0 * model.parameters())


class MfuRange(NamedTuple):
    """What share of the peak to expect, and where that is from."""

    low: float
    high: float
    source: str


USUAL_MFU = {
    "bf16": MfuRange(
        0.2,
        0.5,
        "published: 38 to 43 % (Llama 3, 2024), 44 to 52 % (Narayanan et al., SC 2021), 46 % (PaLM, 2022); lower for "
        "small micro-batches",
    ),
    "fp8": MfuRange(
        0.1,
        0.375,
        "an assumption: from bf16's usual times, which are 10 to 25 % of this peak, to 1.5 times as fast; products of "
        "layers only are in fp8, and nothing fuses the casts",
    ),
    "tf32": MfuRange(0.2, 0.5, "an assumption: as usual in bf16, whose tensor cores these are"),
    "fp32": MfuRange(0.4, 0.8, "an assumption: without tensor cores a GEMM comes near the peak"),
}


def step_seconds(flops: float, devices: int, peak_flops_per_s: float, mfu: float) -> float:
    """Seconds of a step that needs `flops`, on all devices together. MFU's definition, solved for the time.

    >>> step_seconds(4e15, 4, 1e15, 0.5)
    2.0
    """
    return flops / (devices * peak_flops_per_s * mfu)


def expected_bubble(stages: int, microbatches: int, virtual_stages: int = 1) -> float:
    """Idle share of a 1F1B schedule, (p−1)/(v·m+p−1). Source: Narayanan et al., SC 2021, section 2.2.

    >>> expected_bubble(2, 4), expected_bubble(4, 8, 2)
    (0.2, 0.15789473684210525)
    """
    return (stages - 1) / (virtual_stages * microbatches + stages - 1)
