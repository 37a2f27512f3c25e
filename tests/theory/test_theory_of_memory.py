"""Estimates of memory: the slides' table, what each strategy shards, and bounds that no formula may break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.common.model.megatron_layout import Layout
from harness.experiment.model import find_model, model_names
from harness.theory.devices import find_device
from harness.theory.flops import flops_per_token
from harness.theory.memory import megatron_parameters, megatron_state_bytes, state_bytes
from harness.theory.peak import PeakBuffers, chunks_in_flight, of_megatron, of_transformers, peak_of

MISTRAL = find_model("mistral-7b")[0]
GB = 1e9


def test_the_slides_table_comes_out_exactly() -> None:
    """Mistral-7B in bf16, with its parameters rounded to 7 billion as on the slide."""
    whole = state_bytes(7_000_000_000, 1, sharding="zero3", bf16=True)
    assert [whole.parameters / GB, whole.gradients / GB, whole.optimizer / GB] == [14.0, 14.0, 84.0]
    assert whole.total / GB == 112.0
    assert state_bytes(7_000_000_000, 4, sharding="zero3", bf16=True).total / GB == 28.0


def test_deepspeed_pays_for_float32_weights_twice() -> None:
    """Its optimizer updates a copy also where the weights are float32: found by counting what it allocates."""
    ddp, zero = (state_bytes(1000, 1, sharding=sharding) for sharding in ("none", "zero2"))
    assert (ddp.optimizer, zero.optimizer) == (8000, 12000)


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("layout", [Layout(8), Layout(8, tp=2, pp=2), Layout(8, tp=2, cp=2), Layout(4, pp=4)], ids=str)
def test_the_ranks_of_a_replica_hold_the_whole_model(name: str, layout: Layout) -> None:
    """Norms are on each tensor-parallel rank; a tied embedding is on the first and on the last stage."""
    model = find_model(name)[0]
    held = sum(megatron_parameters(model, layout, stage) for stage in range(layout.pp)) * layout.tp
    alike = (2 * model.num_hidden_layers + 1) * model.hidden_size
    again = model.vocab_size * model.hidden_size if model.tie_word_embeddings and layout.pp > 1 else 0
    assert held == model.parameters() + (layout.tp - 1) * alike + again


def test_the_distributed_optimizer_is_shared_by_data_and_context_parallel_ranks() -> None:
    """Megatron-LM's own table: 6 + 12/d bytes in bf16, 8 + 8/d in float32."""
    for d in (1, 2, 8):
        assert megatron_state_bytes(1000, Layout(d), bf16=True).total == 1000 * (6 + 12 / d)
        assert megatron_state_bytes(1000, Layout(d)).total == 1000 * (8 + 8 / d)
        assert megatron_state_bytes(1000, Layout(d, cp=d)).total == 1000 * (8 + 8 / d)


@given(tokens=st.integers(1, 10**6), name=st.sampled_from(model_names()))
def test_computing_again_never_takes_more_memory(tokens: int, name: str) -> None:
    model = find_model(name)[0]
    for arithmetic in ("fp32", "bf16", "autocast"):
        found = of_transformers(model, tokens, arithmetic=arithmetic, parameters=10**9)
        assert found.peak(True) <= found.peak(False)
        assert found.kept < found.layer


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 4))
def test_a_stage_holds_no_more_micro_batches_than_there_are(stages: int, micro_batches: int, virtual: int) -> None:
    for stage in range(stages):
        held = chunks_in_flight(stages, stage, micro_batches, virtual)
        assert 1 <= held <= micro_batches * virtual
    assert chunks_in_flight(stages, stages - 1, micro_batches) == 1


def test_tensor_and_context_parallel_ranks_share_the_activations() -> None:
    alone, tensor, context = (
        of_megatron(MISTRAL, 1, 4096, layout, bf16=True).peak(False)
        for layout in (Layout(1), Layout(4, tp=4), Layout(4, cp=4))
    )
    assert tensor == pytest.approx(alone / 4, rel=0.05)
    assert alone / 4 < context < alone / 2, "each rank gathers the keys and values of all"


def test_a_peak_is_at_the_turn_or_in_the_step() -> None:
    state = state_bytes(1000, 1)
    few, many = (of_transformers(MISTRAL, tokens, arithmetic="fp32") for tokens in (1, 10**4))
    assert peak_of(state, many, PeakBuffers()).highest.gradients == 0
    small = of_transformers(find_model("tiny-llama")[0], 1, arithmetic="fp32")
    assert peak_of(state_bytes(10**9, 1), small, PeakBuffers()).highest.gradients == 4e9
    assert peak_of(state, few, PeakBuffers(), gradients_stay=True).turn.gradients == 4000


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("NVIDIA A100-SXM-64GB", 64),
        ("NVIDIA A100-SXM4-40GB", 40),
        ("NVIDIA A100-SXM4-80GB", 80),
        ("NVIDIA H100 64GB", 64),
        ("NVIDIA H200", 140.4),
        ("NVIDIA A100", None),
        ("Radeon", None),
        (None, None),
    ],
)
def test_a_device_is_known_by_its_whole_name_or_not_at_all(name: str | None, gib: float | None) -> None:
    device = find_device(name)
    assert (device and device.memory_gib) == gib and (device is None) == (name in ("Radeon", None))


@pytest.mark.parametrize("name", model_names())
def test_6n_is_near_the_exact_count_where_sequences_are_short(name: str) -> None:
    """Of a large model; embeddings that are not multiplied make 6N larger, attention makes it smaller."""
    model = find_model(name)[0]
    if not model.tiny:
        assert flops_per_token(model, 512).over_rule == pytest.approx(1, abs=0.05)
    assert flops_per_token(model, 512) is flops_per_token(model, 512), "counted once"
