"""The cause of a slowdown by rules over its numbers: the stages' work, slow workers, micro-batches, an operation."""

from __future__ import annotations

from typing import NamedTuple

from harness.replay.stragglers.slowdown import Shares
from harness.traces.operations.vocabulary import SHOWN, Role

LEAST_SLOWDOWN = 1.03  # below it, no stragglers count; the authors' tool attributes nothing either
_LEAST_SHARE = 0.25
_PASSES = (SHOWN[Role.FORWARD], SHOWN[Role.BACKWARD])


class Cause(NamedTuple):
    """what: `none`, `stages`, `workers`, `micro-batches`, `operation` or `several`. share: of the lost time."""

    what: str
    share: float | None = None
    operation: str | None = None


def cause_of(shares: Shares | None) -> Cause:
    """The largest share, if it is large enough. Without shares there is no slowdown that counts."""
    if shares is None:
        return Cause("none")
    found = [Cause(what, share) for what, share in even_shares(shares).items()]
    found += [
        Cause("operation", share, name) for name, share in shares.operations.items() if name not in _PASSES
    ]
    largest = max(found, key=lambda cause: cause.share or 0.0)
    return largest if (largest.share or 0.0) >= _LEAST_SHARE else Cause("several", largest.share)


def even_shares(shares: Shares) -> dict[str, float]:
    """The shares of what passes would save, by cause."""
    return {
        "stages": shares.even_stages,
        "workers": shares.even_workers,
        "micro-batches": shares.even_passes,
    }
