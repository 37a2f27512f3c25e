"""A chapter's expected tables beside our formulas: docs/theory.md has the numbers that are computed here."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from harness.common.model.alpha_beta import bus_factor
from harness.common.model.model_config import Sharding
from harness.experiment.model import find_model
from harness.theory.communication import NominalRates, PlannedTraffic, time_by_rates_ns, traffic_per_step
from harness.theory.devices import find_device
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


def says(*texts: str) -> None:
    for text in texts:
        assert text in SECTION, text


def test_the_mfu_of_the_chapters_own_numbers() -> None:
    h100 = find_device("NVIDIA H100 80GB HBM3")
    assert h100 is not None and round(h100.tflops["bf16"]) == 989
    flops = flops_per_token(LLAMA_2_7B, SEQUENCE).total * TOKENS
    says(f"450 / 989 = **{100 * 450 / 989:.1f} %**", f"{flops / 1e12:.0f} TFLOP")
    says(*(f"{1e3 * flops / rate:.0f} ms" for rate in (450e12, 0.23 * 989e12, 989e12)))
    h, layers, vocabulary = 4096, 32, 32000
    by_chapter = layers * (21 * h * h + 4 * SEQUENCE * h) + 2 * vocabulary * h  # its count_flops_per_token
    says(f"{100 * 6 * by_chapter * TOKENS / 0.18 / 989e12:.0f} %")


def test_what_nvlink_allows_an_all_reduce_of_eight() -> None:
    algorithm = NVLINK_GBPS / bus_factor("all_reduce", 8)
    says(f"{algorithm / 8:.0f} GB/s of algorithm", f"**{algorithm:.0f} Gbit/s**")


def test_overlap_and_a_straggler() -> None:
    hidden = 15 + 20 - 24
    says(f"**{100 * hidden / min(15, 20):.0f} %**", f"{hidden} / 20 = {100 * hidden / 20:.0f} %")
    says(f"1 − 15 / 65 = **{100 * (1 - 15 / 65):.0f} %**", f"50 / (33.1 + 50) = {100 * 50 / 83.1:.0f} %")
    says(f"33.1 ms became 81.8 ms, −{100 * (1 - 33.1 / 81.8):.0f} %")


def test_the_buckets_of_the_chapters_model() -> None:
    traffic = PlannedTraffic("all_reduce", "backward", 8, MLP_BYTES)
    least = time_by_rates_ns(traffic, False, 8, NominalRates(intra_gbps=NVLINK_GBPS))
    assert least is not None
    says(f"{MLP_BYTES / 1e9:.2f} GB of gradients take at least {least / 1e6:.1f} ms")
    assert 4096 * 4096 * 4 == 64 * 2**20


@pytest.mark.train
def test_the_buckets_are_pytorchs_own() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch assigns gradients to buckets")
    assign = importlib.import_module("torch.distributed")._compute_bucket_assignment_by_size

    shapes = [torch.empty(4096, 4096, device="meta"), torch.empty(4096, device="meta")] * 20
    counts = {}
    for cap in (1, 5, 10, 25, 50, 100, 250):
        counts[cap] = len(assign(shapes[::-1], [2**20, cap * 2**20])[0])
    assert counts == {1: 20, 5: 20, 10: 20, 25: 20, 50: 20, 100: 11, 250: 6}
    says("**20 buckets at 1, 5, 10, 25 and 50 MB**, 11 at 100, 6 at 250")


def test_the_memory_of_seven_billion_parameters() -> None:
    state = state_bytes(7_000_000_000, 1)
    assert [part / 1e9 for part in (state.parameters, state.gradients, state.optimizer)] == [28, 28, 56]
    says(f"28 + 28 + 56 = {state.total / 1e9:.0f} GB", f"{state_bytes(LLAMA_2_7B.parameters(), 1).total / 1e9:.1f}")
    kinds: list[Arithmetic] = ["fp32", "autocast", "bf16"]
    made = (of_transformers(LLAMA_2_7B, TOKENS, arithmetic=kind) for kind in kinds)
    fp32, autocast, bf16 = (activations.layers * activations.layer / 1e9 for activations in made)
    says(f"**{fp32:.1f} GB** in fp32, {autocast:.1f} with autocast, {bf16:.1f} in bf16")
    says(f"gives {32 * 34 * TOKENS * 4096 / 1e9:.1f} GB")


def test_what_the_stages_send_compared_with_ddp() -> None:
    def sent(sharding: Sharding) -> float:
        each = traffic_per_step(1000, 8, sharding=sharding)
        return sum(t.message_bytes * bus_factor(t.kind, t.group_size) for t in each)

    stages: list[Sharding] = ["zero1", "zero2", "zero3"]
    one, two, three = (sent(stage) / sent("none") for stage in stages)
    says(f"**{one:g}, {two:g} and {three:g}** times")
