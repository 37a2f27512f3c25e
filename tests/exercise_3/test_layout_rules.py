"""Which parallel layouts exercise 3 trains, and the sentence it refuses the others with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exercises.exercise_3_MegatronLM.parallel import Batch, Layout, Shape, check
from exercises.utils.errors import TrainingRequestError

MISTRAL = Shape(layers=32, heads=32, kv_heads=8, feed_forward=14336, vocabulary=32000)
MIXTRAL = Shape(layers=32, heads=32, kv_heads=8, feed_forward=14336, vocabulary=32000, experts=8)
ODD = Shape(layers=2, heads=12, kv_heads=4, feed_forward=48, vocabulary=96)
WORKSHOP = Batch(global_size=128, micro_size=1, seq_length=4096)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout(world=4, tp=4), MISTRAL),
        (Layout(world=8, tp=4, pp=2), MISTRAL),
        (Layout(world=16, tp=16), MISTRAL),  # two ranks share a key-value head
        (Layout(world=8, tp=1, pp=8), MISTRAL),  # more stages than nodes of four
        (Layout(world=8, tp=2, pp=2, vpp=4), MISTRAL),
        (Layout(world=8, tp=2, cp=2), MISTRAL),
        (Layout(world=8, pp=2, ep=4), MIXTRAL),
    ],
)
def test_layouts_of_the_workshop_and_beyond_are_accepted(layout: Layout, shape: Shape) -> None:
    check(layout, WORKSHOP, shape)


@pytest.mark.parametrize(
    ("layout", "batch", "shape", "sentence"),
    [
        (
            Layout(4, tp=3),
            WORKSHOP,
            MISTRAL,
            "--tp 3 × --pp 1 × --cp 1 = 3 must divide the 4 processes of this run",
        ),
        (Layout(8, tp=8, pp=2), WORKSHOP, MISTRAL, "= 16 must divide the 8 processes"),
        (Layout(3, pp=3), WORKSHOP, MISTRAL, "= 3 stages must divide the model's 32 layers"),
        (
            Layout(2, pp=2, vpp=3),
            WORKSHOP,
            MISTRAL,
            "--pp 2 × --vpp 3 = 6 stages must divide the model's 32 layers",
        ),
        (Layout(2, vpp=2), WORKSHOP, MISTRAL, "--vpp 2 interleaves pipeline stages, but --pp is 1"),
        (
            Layout(64, tp=64),
            WORKSHOP,
            MISTRAL,
            "--tp 64 must divide the model's attention heads, which is 32",
        ),
        (
            Layout(6, tp=6),
            WORKSHOP,
            ODD,
            "--tp 6 must divide the model's 4 key-value heads or be a multiple of them",
        ),
        (
            Layout(4),
            Batch(130, 1, 64),
            MISTRAL,
            "must be a multiple of 4 (--micro-batch-size 1 × data parallel 4): try",
        ),
        (
            Layout(2, pp=2, vpp=2),
            Batch(3, 1, 64),
            MISTRAL,
            "a multiple of --pp 2 micro-batches per iteration, got 3",
        ),
        (Layout(4, tp=4), Batch(4, 1, 66), MISTRAL, "--seq-length 66 must be a multiple of 4"),
        (Layout(4, cp=4), Batch(4, 1, 60), MISTRAL, "--seq-length 60 must be a multiple of 8"),
        (Layout(2, ep=2), WORKSHOP, MISTRAL, "--ep 2 needs a mixture-of-experts model"),
        (Layout(3, ep=3), Batch(3, 1, 64), MIXTRAL, "--ep 3 must divide the model's 8 experts"),
        (
            Layout(2, tp=2, ep=2),
            WORKSHOP,
            MIXTRAL,
            "--ep 2 must divide the 1 data- and context-parallel ranks",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_flag_and_the_numbers(
    layout: Layout, batch: Batch, shape: Shape, sentence: str
) -> None:
    with pytest.raises(TrainingRequestError) as refusal:
        check(layout, batch, shape)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@given(
    world=st.integers(1, 64),
    batch=st.builds(Batch, st.integers(1, 512), st.integers(1, 8), st.integers(1, 4096)),
)
def test_the_ranks_shares_of_a_batch_add_up_to_it(world: int, batch: Batch) -> None:
    tokens = [batch.tokens_of_rank(rank, world) for rank in range(world)]
    assert sum(tokens) == batch.global_size * batch.seq_length
    assert max(tokens) - min(tokens) <= 1
    assert sum(batch.samples_of_rank(rank, world) for rank in range(world)) == batch.global_size
