"""Since when a loss is not finite, from the lines of the nodes."""

from __future__ import annotations

import pytest

from harness.heartbeats.bad_loss import earliest
from harness.heartbeats.lines import LossLine

LOOK = "the weights were finite, so look at the batch and the forward pass of that step"
BEFORE = "the weights were not finite before it, so gradients of an earlier step were not"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([(0, 13, "nan", False), (2, 12, "nan", True), (1, 12, "nan", True)],
         f"the loss is NaN since step 12 on ranks 1 and 2: {LOOK}"),
        ([(0, 13, "inf", False)], f"the loss is infinite since step 13 on rank 0: {BEFORE}"),
        ([(0, 13, "nan", None)],
         "the loss is NaN since step 13 on rank 0; whether the weights were before it cannot be known from this"),
        ([], None),
    ],
)  # fmt: skip
def test_the_first_step_and_its_ranks_are_named_and_what_came_before(
    lines: list[tuple[int, int, str, bool | None]], sentence: str | None
) -> None:
    found = earliest(LossLine(rank=rank, step=step, loss=loss, weights=known) for rank, step, loss, known in lines)
    assert (found and found.sentence) == sentence
