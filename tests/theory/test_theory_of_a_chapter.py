"""A chapter's expected tables beside our formulas: docs/theory.md has the numbers that are computed here."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from harness.common.model.alpha_beta import bus_factor
from harness.common.model.model_config import Sharding
from harness.experiment.model import find_model
from harness.theory.communication import NominalRates, PlannedTraffic, ddp_buckets, time_by_rates_ns, traffic_per_step
from harness.theory.devices import peak_flops_per_s
from harness.theory.flops import flops_per_token
from harness.theory.memory import state_bytes
from harness.theory.peak import Arithmetic, of_transformers

SECTION = (
    (Path(__file__).parents[2] / "docs/theory.md").read_text(encoding="utf-8").partition("## A chapter's expected")[2]
)
LLAMA_2_7B = replace(find_model("mistral-7b")[0], name="llama-2-7b", intermediate_size=11008, num_key_value_heads=32)
TOKENS, SEQUENCE = 4 * 2048, 2048
NVLINK_GBPS = 8 * 450.0  # of an H100, one direction
MLP_BYTES = 20 * (4096 * 4096 + 4096) * 4
HIDDEN, LAYERS, VOCABULARY = 4096, 32, 32000
FLOPS = flops_per_token(LLAMA_2_7B, SEQUENCE).total * TOKENS
PEAK = 1e12 * round((peak_flops_per_s("NVIDIA H100 80GB HBM3", "bf16") or (0.0, ""))[0] / 1e12)
# Its count_flops_per_token.
BY_CHAPTER = 6 * TOKENS * (LAYERS * (21 * HIDDEN * HIDDEN + 4 * SEQUENCE * HIDDEN) + 2 * VOCABULARY * HIDDEN)
ALGORITHM = NVLINK_GBPS / bus_factor("all_reduce", 8)
OVERLAPPED = 15 + 20 - 24
BUCKETS = PlannedTraffic("all_reduce", "backward", 8, MLP_BYTES)
LEAST_NS = time_by_rates_ns(BUCKETS, False, 8, NominalRates(intra_gbps=NVLINK_GBPS)) or 0.0
SEVEN_BILLION = state_bytes(7_000_000_000, 1)


def kept_gb(arithmetic: Arithmetic) -> float:
    """Of all layers."""
    made = of_transformers(LLAMA_2_7B, TOKENS, arithmetic=arithmetic)
    return made.layers * made.layer / 1e9


def sent(sharding: Sharding) -> float:
    """What each link carries, as a multiple of DDP's."""
    found = [traffic_per_step(1000, 8, sharding=one) for one in (sharding, "none")]
    mine, ddp = (sum(t.message_bytes * bus_factor(t.kind, t.group_size) for t in each) for each in found)
    return mine / ddp


SAYS = {
    "the MFU of its own numbers": [
        f"450 / {PEAK / 1e12:.0f} = **{100 * 450e12 / PEAK:.1f} %**", f"{FLOPS / 1e12:.0f} TFLOP",
        *(f"{1e3 * FLOPS / rate:.0f} ms" for rate in (450e12, 0.23 * PEAK, PEAK)),
        f"{100 * BY_CHAPTER / 0.18 / PEAK:.0f} %",
    ],
    "what NVLink allows an all-reduce of eight": [
        f"{ALGORITHM / 8:.0f} GB/s of algorithm", f"**{ALGORITHM:.0f} Gbit/s**"
    ],
    "overlap and a straggler": [
        f"**{100 * OVERLAPPED / 15:.0f} %**", f"{OVERLAPPED} / 20 = {100 * OVERLAPPED / 20:.0f} %",
        f"1 − 15 / 65 = **{100 * (1 - 15 / 65):.0f} %**", f"50 / (33.1 + 50) = {100 * 50 / 83.1:.0f} %",
        f"33.1 ms became 81.8 ms, −{100 * (1 - 33.1 / 81.8):.0f} %",
    ],
    "the buckets of its model": [
        f"{MLP_BYTES / 1e9:.2f} GB of gradients take at least {LEAST_NS / 1e6:.1f} ms"
    ],
    "the memory of seven billion parameters": [
        f"28 + 28 + 56 = {SEVEN_BILLION.total / 1e9:.0f} GB",
        f"{state_bytes(LLAMA_2_7B.parameters(), 1).total / 1e9:.1f}",
        f"**{kept_gb('fp32'):.1f} GB** in fp32, {kept_gb('autocast'):.1f} with autocast, {kept_gb('bf16'):.1f} in bf16",
        f"gives {32 * 34 * TOKENS * 4096 / 1e9:.1f} GB",
    ],
    "what the stages send compared with DDP": [
        f"**{sent('zero1'):g}, {sent('zero2'):g} and {sent('zero3'):g}** times"
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", SAYS)
def test_the_page_says(what: str) -> None:
    assert [text for text in SAYS[what] if text not in SECTION] == []


@pytest.mark.train
def test_the_buckets_are_pytorchs_own() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch assigns gradients to buckets")
    assign = importlib.import_module("torch.distributed")._compute_bucket_assignment_by_size

    def counted(gradients: list[int], *caps: float) -> int:
        tensors = [torch.empty(size, device="meta") for size in reversed(gradients)]
        return len(assign(tensors, [int(cap * 2**20) for cap in caps])[0])

    chapter = [4096 * 4096, 4096] * 20
    counts = {cap: counted(chapter, 1, cap) for cap in (1, 5, 10, 25, 50, 100, 250)}
    assert counts == {1: 20, 5: 20, 10: 20, 25: 20, 50: 20, 100: 11, 250: 6}
    model = find_model("llama-3.2-1b")[0]
    for gradients in (model.gradients(), model.gradients(lora=64), find_model("tiny-llama")[0].gradients()):
        assert ddp_buckets(reversed(gradients)) == counted(gradients, 1, 25)
        for cap in (0.02, 0.25, 1, 10, 250):
            assert ddp_buckets(reversed(gradients), cap * 2**20) == counted(gradients, cap)
    assert "**20 buckets at 1, 5, 10, 25 and 50 MB**, 11 at 100, 6 at 250" in SECTION
