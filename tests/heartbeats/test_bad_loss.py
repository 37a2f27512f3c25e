"""Since when a loss is not finite, from the lines of the nodes."""

from __future__ import annotations

from harness.heartbeats.bad_loss import earliest
from harness.heartbeats.lines import LossLine


def line(rank: int, step: int, weights: bool | None, loss: str = "nan") -> LossLine:
    return LossLine(rank=rank, step=step, loss=loss, weights=weights)


def test_the_first_step_and_its_ranks_are_named_and_what_came_before() -> None:
    found = earliest([line(0, 13, False), line(2, 12, True), line(1, 12, True)])
    assert found is not None
    assert found.sentence == (
        "the loss is NaN since step 12 on ranks 1 and 2: the weights were finite, so look at the batch and the forward "
        "pass of that step"
    )
    gradients = earliest([line(0, 13, False, "inf")])
    assert gradients is not None
    assert gradients.sentence.startswith("the loss is infinite since step 13 on rank 0: the weights were not finite")
    unknown = earliest([line(0, 13, None)])
    assert unknown is not None
    assert "cannot be known from this" in unknown.sentence


def test_without_a_bad_loss_nothing_is_said() -> None:
    assert earliest([]) is None
