"""The first step with a loss that is not finite, from the heartbeats of all nodes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.common.display.text import ranks_named
from harness.common.system.bounded_read import BoundedReadError
from harness.heartbeats.lines import LossLine, both_ends, node_files


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
    found = []
    for path in node_files(run):
        with suppress(OSError, BoundedReadError):
            found += [line for line in both_ends(path) if isinstance(line, LossLine)]
    return earliest(found)


def earliest(lines: Iterable[LossLine]) -> BadLoss | None:
    """Of those of all nodes."""
    known = sorted(lines, key=lambda line: (line.step, line.rank))
    if not known:
        return None
    first = [line for line in known if line.step == known[0].step]
    weights = [line.weights for line in first if line.weights is not None]
    return BadLoss(known[0].step, tuple(line.rank for line in first), known[0].loss, all(weights) if weights else None)
