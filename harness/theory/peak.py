"""The peak of a rank's memory: state, activations and buffers at the two moments when most of them are there at once.

Between the two, gradients grow as activations go, layer by layer, so that the peak is at one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from harness.theory.activations import Activations
from harness.theory.buffers import Buffers
from harness.theory.memory import StateBytes


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes on one rank at one moment, by what they are for."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    framework: float

    @property
    def total(self) -> float:
        """Their sum."""
        return float(sum(getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Peak:
    """turn: the end of the forward pass, where all activations are there. step: the optimizer's, with all gradients."""

    turn: Parts
    step: Parts

    @property
    def highest(self) -> Parts:
        """The moment that needs more."""
        return max(self.turn, self.step, key=lambda parts: parts.total)


def peak_of(
    state: StateBytes,
    activations: Activations,
    buffers: Buffers,
    *,
    checkpointing: bool = False,
    in_flight: int = 1,
    gradients_stay: bool = False,
    framework: float = 0.0,
) -> Peak:
    """The peak of a rank.

    in_flight: micro-batches whose activations are held at once. gradients_stay: they are there in the forward pass too:
    in a buffer of their own, or summed over micro-batches. framework: what the process needs without a model.
    """
    one = activations.kept if checkpointing else activations.layer
    held = (in_flight - 1) * activations.layers * one + activations.peak(checkpointing)
    weights = state.parameters + state.secondary
    return Peak(
        turn=Parts(
            weights=weights,
            gradients=state.gradients if gradients_stay else 0.0,
            optimizer=state.optimizer,
            activations=held,
            buffers=buffers.always + buffers.in_pass,
            framework=framework,
        ),
        step=Parts(
            weights=weights,
            gradients=state.gradients,
            optimizer=state.optimizer,
            activations=0.0,
            buffers=buffers.always + buffers.in_step,
            framework=framework,
        ),
    )
