"""Which parallel layouts exercise 3 trains, and the sentence it refuses the others with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exercises.exercise_3_MegatronLM.options import check
from harness.common.errors import RequestError
from harness.common.model.megatron_layout import BatchSizes, Layout, model_misfits
from harness.common.model.model_config import ModelConfig
from harness.experiment.model import find_model

MISTRAL = find_model("mistral-7b")[0]
ODD = replace(MISTRAL, num_attention_heads=12, num_key_value_heads=4, intermediate_size=48, vocab_size=96)
WORKSHOP = BatchSizes(global_size=128, micro_size=1, seq_length=4096)


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        (Layout(world=4, tp=4), MISTRAL),
        (Layout(world=8, tp=4, pp=2), MISTRAL),
        (Layout(world=16, tp=16), MISTRAL),  # two ranks share a key-value head
        (Layout(world=8, tp=1, pp=8), MISTRAL),  # more stages than nodes of four
        (Layout(world=8, tp=2, pp=2, vpp=4), MISTRAL),
        (Layout(world=8, tp=2, cp=2), MISTRAL),
    ],
)
def test_layouts_of_the_workshop_and_beyond_are_accepted(layout: Layout, model: ModelConfig) -> None:
    check(layout, WORKSHOP, model)


@pytest.mark.parametrize(
    ("layout", "batch", "model", "sentence"),
    [
        (
            Layout(4, tp=3),
            WORKSHOP,
            MISTRAL,
            "--tp 3 × --pp 1 × --cp 1 = 3 does not divide the world size 4: make it one of 1, 2, 4",
        ),
        (Layout(8, tp=8, pp=2), WORKSHOP, MISTRAL, "= 16 does not divide the world size 8"),
        (Layout(3, pp=3), WORKSHOP, MISTRAL, "= 3 does not divide the 32 layers of mistral-7b"),
        (Layout(2, pp=2, vpp=3), WORKSHOP, MISTRAL, "--pp 2 × --vpp 3 = 6 does not divide the 32 layers of mistral-7b"),
        (Layout(2, vpp=2), WORKSHOP, MISTRAL, "--vpp 2 interleaves pipeline stages and --pp is 1"),
        (Layout(64, tp=64), WORKSHOP, MISTRAL, "--tp 64 does not divide the 32 attention heads of mistral-7b"),
        (
            Layout(6, tp=6),
            WORKSHOP,
            ODD,
            "--tp 6 neither divides the 4 key-value heads of mistral-7b nor is a multiple of them",
        ),
        (
            Layout(4),
            BatchSizes(130, 1, 64),
            MISTRAL,
            "is not a multiple of micro-batch size × data parallel size = 1 × 4 = 4: try 128",
        ),
        (
            Layout(2, pp=2, vpp=2),
            BatchSizes(3, 1, 64),
            MISTRAL,
            "a multiple of --pp 2 micro-batches per iteration and has 3",
        ),
        (Layout(4, tp=4), BatchSizes(4, 1, 66), MISTRAL, "--seq-length 66 is not a multiple of 4"),
        (Layout(4, cp=4), BatchSizes(4, 1, 60), MISTRAL, "--seq-length 60 is not a multiple of 8"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_flag_and_the_numbers(
    layout: Layout, batch: BatchSizes, model: ModelConfig, sentence: str
) -> None:
    with pytest.raises(RequestError) as refusal:
        check(layout, batch, model)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_vocabulary_is_no_reason_to_refuse_a_script_that_makes_it_larger() -> None:
    model, layout = replace(MISTRAL, vocab_size=32001), Layout(2, tp=2)
    assert list(model_misfits(layout, WORKSHOP, model)) == [
        "--tp 2 does not divide the 32001 tokens in the vocabulary of mistral-7b"
    ]
    assert not list(model_misfits(layout, WORKSHOP, model, pads_vocabulary=True))


@given(
    world=st.integers(1, 64), batch=st.builds(BatchSizes, st.integers(1, 512), st.integers(1, 8), st.integers(1, 4096))
)
def test_the_ranks_shares_of_a_batch_add_up_to_it(world: int, batch: BatchSizes) -> None:
    tokens = [batch.tokens_of_rank(rank, world) for rank in range(world)]
    assert sum(tokens) == batch.global_size * batch.seq_length
    assert max(tokens) - min(tokens) <= 1
    assert sum(batch.samples_of_rank(rank, world) for rank in range(world)) == batch.global_size
