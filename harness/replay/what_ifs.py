"""What may be changed in a replay: each entry has its edit of the arcs' lengths.

`WHAT_IFS` names them all. An edit that does not apply to a job gives None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.analysis.process.phases import PHASES
from harness.common.alpha_beta import fit_alpha_beta
from harness.replay.scene import HOST_SORTS, Scene, slots
from harness.replay.sorts import Sort
from harness.replay.suspects import BACKWARD, DATA, FORWARD, HELD, OPTIMIZER, STALLED, uneven
from harness.traces.trace import I64

Edit = Callable[[Scene], I64 | None]


@dataclass(frozen=True)
class WhatIfKind:
    """One change. `bound`: no run reaches it; it says how much there is to gain at most."""

    name: str
    meaning: str
    edit: Edit
    bound: bool = False


def _scaled(scene: Scene, sorts: tuple[Sort, ...], factor: float, phase: int | None = None) -> I64 | None:
    if not scene.of(sorts, phase).any():
        return None
    factors = scene.job.unchanged()
    factors[:, slots(sorts, phase)] = factor
    return scene.job.scaled(factors)


def _no_data(scene: Scene) -> I64 | None:
    return _scaled(scene, (Sort.HOST_GAP, *HELD), 0, DATA)


def _no_stall(phase: int) -> Edit:
    return lambda scene: _scaled(scene, STALLED, 0, phase)


def _like_the_others(scene: Scene) -> I64 | None:
    return next((found.lengths for found in uneven(scene)), None)


def _no_gaps(scene: Scene) -> I64 | None:
    factors = scene.job.unchanged()
    for phase in (FORWARD, BACKWARD, OPTIMIZER):
        factors[:, slots((Sort.HOST_GAP, Sort.HOST_STALL), phase)] = 0
    return scene.job.scaled(factors)


def _free_network(scene: Scene) -> I64 | None:
    return ideal_network(scene) if len(scene.job.messages.arc) else None


def ideal_network(scene: Scene) -> I64:
    """Every arc's length where messages take no time: ranks still wait for each other."""
    factors = scene.job.unchanged()
    factors[:, slots((Sort.TRANSFER,))] = 0
    return scene.job.scaled(factors)


def _network(latency: float, inverse_bandwidth: float) -> Edit:
    """Messages by the job's own α and β, with each multiplied."""

    def edit(scene: Scene) -> I64 | None:
        messages = scene.job.messages
        sized = messages.bytes > 0
        sizes = np.unique(messages.bytes[sized])
        if len(sizes) < 3:
            return None
        times = [float(np.median(messages.ns[messages.bytes == size])) for size in sizes]
        line = fit_alpha_beta(sizes.tolist(), times)
        if line is None:
            return None
        alpha, beta = line.alpha_ns, line.beta_ns_per_byte * messages.bytes
        now, then = alpha + beta, latency * alpha + inverse_bandwidth * beta
        lengths: I64 = scene.job.lengths.copy()
        ratio = np.where(sized & (now > 0), then / np.maximum(now, 1), 1.0)
        lengths[messages.arc] = np.rint(messages.ns * ratio).astype(np.int64)
        return lengths

    return edit


def _faster_products(scene: Scene) -> I64 | None:
    return _scaled(scene, (Sort.HOST_PRODUCT, Sort.DEVICE_PRODUCT), 0.5)


WHAT_IFS: tuple[WhatIfKind, ...] = (
    WhatIfKind("no-data-stall", "no waiting for data", _no_data),
    *(
        WhatIfKind(
            f"no-stall-{PHASES[phase]}",
            f"no stall longer than the usual gap in {PHASES[phase]}",
            _no_stall(phase),
        )
        for phase in (FORWARD, BACKWARD, OPTIMIZER)
    ),
    WhatIfKind("rank-like-others", "the slowest rank's work as large as the others'", _like_the_others),
    WhatIfKind(
        "no-host-gaps",
        "no time between operators, as with CUDA graphs or larger kernels",
        _no_gaps,
        bound=True,
    ),
    WhatIfKind(
        "free-communication",
        "messages that take no time; ranks still wait for each other",
        _free_network,
        bound=True,
    ),
    WhatIfKind("bandwidth-x2", "twice the bandwidth, by the job's own α and β", _network(1, 0.5)),
    WhatIfKind("latency-half", "half the latency, by the job's own α and β", _network(0.5, 1)),
    WhatIfKind("products-x2", "matrix products twice as fast, as bf16 may make them", _faster_products),
)

__all__ = ["HOST_SORTS", "WHAT_IFS", "WhatIfKind", "ideal_network"]
