"""Theory agrees with what was counted, measured or published elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.common.model.alpha_beta import bus_factor
from harness.common.model.model_config import Sharding
from harness.experiment.model import find_model
from harness.theory.communication import traffic_per_step
from harness.theory.memory import state_bytes

MISTRAL = find_model("mistral-7b")[0]


@pytest.mark.parametrize(
    ("name", "billions"), [("llama-3.2-1b", 1.2358), ("llama-3.1-8b", 8.0303), ("mistral-7b", 7.2417)]
)
def test_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert find_model(name)[0].parameters() / 1e9 == pytest.approx(billions, rel=1e-4)


def test_flops_are_what_a_flop_counter_counted() -> None:
    """FlopCounterMode over Mistral-7B, 4096 tokens, eager attention: 201.1 TFLOP."""
    assert MISTRAL.flops_per_token(4096) * 4096 / 1e12 == pytest.approx(201.1, rel=0.02)


@given(st.integers(1, 10**11), st.integers(2, 1024), st.booleans())
def test_each_stage_needs_no_more_memory_than_the_one_before(psi: int, ranks: int, bf16: bool) -> None:
    totals = [
        state_bytes(psi, ranks, sharding=sharding, bf16=bf16).total for sharding in ("none", "zero1", "zero2", "zero3")
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] == 16 * psi
    assert totals[-1] == pytest.approx((16 if bf16 else 20) * psi / ranks)


def test_hpz_pays_a_second_share_of_the_parameters() -> None:
    without, with_hpz = (state_bytes(1000, 8, sharding="zero3", bf16=True, hpz=h) for h in (1, 4))
    assert with_hpz.total - without.total == 2 * 1000 / 4


def _wire(sharding: Sharding = "none", micro_batches: int = 1) -> float:
    traffic = traffic_per_step(1000, 8, sharding=sharding, micro_batches=micro_batches)
    return sum(t.message_bytes * bus_factor(t.kind, t.group_size) for t in traffic)


def test_every_stage_as_deepspeed_sends_it_loads_the_links_half_as_much_again_as_ddp() -> None:
    ddp = _wire()
    assert ddp == 2 * 1000 * 4 * 7 / 8
    assert _wire(sharding="zero1") == _wire(sharding="zero2") == _wire(sharding="zero3") == 1.5 * ddp


def test_accumulation_saves_messages_in_ddp_and_not_in_stage_3() -> None:
    assert _wire(micro_batches=16) == _wire()
    assert _wire(sharding="zero3", micro_batches=16) == 16 * _wire(sharding="zero3")
