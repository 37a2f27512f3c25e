"""Since when the loss of a run is not finite, on which rank, and whether the gradients were before it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.heartbeats import live_folder
from harness.live.node_file import both_ends
from harness.live.text import ranks_named


class BadLoss(NamedTuple):
    """The first step with a loss that is not finite, and the ranks that had one in it."""

    step: int
    ranks: tuple[int, ...]
    loss: str
    weights_were_finite: bool | None

    @property
    def sentence(self) -> str:
        """What is known, and what it means."""
        name = {"nan": "NaN", "inf": "infinite", "-inf": "minus infinity"}.get(self.loss, self.loss)
        said = f"the loss is {name} since step {self.step} on {ranks_named(self.ranks)}"
        if self.weights_were_finite is None:
            return f"{said}; whether the weights were before it cannot be known from this"
        if self.weights_were_finite:
            return f"{said}: the weights were finite, so look at the batch and the forward pass of that step"
        return f"{said}: the weights were not finite before it, so gradients of an earlier step were not"


def first_bad_loss(run: Path) -> BadLoss | None:
    """The first of all ranks; None: every loss that is known is finite."""
    paths = sorted(live_folder(run).glob("*.jsonl"))
    return earliest(line for path in paths for line in both_ends(path) if line.get("event") == "loss")


def earliest(lines: Iterable[dict[str, Any]]) -> BadLoss | None:
    """Of the lines `loss` of all nodes."""
    known = [
        line for line in lines if isinstance(line.get("step"), int) and isinstance(line.get("rank"), int)
    ]
    if not known:
        return None
    step = min(line["step"] for line in known)
    first = [line for line in known if line["step"] == step]
    weights = [line["weights"] for line in first if isinstance(line.get("weights"), bool)]
    ranks = tuple(sorted(line["rank"] for line in first))
    return BadLoss(step, ranks, str(first[0].get("loss")), all(weights) if weights else None)
