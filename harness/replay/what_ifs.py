"""What may be changed in a replay: each entry has its edit of the arcs' lengths.

`WHAT_IFS` names them all. An edit that does not apply to a job gives None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.analysis.process.phases import PHASES
from harness.replay import batches, network
from harness.replay.edits import Edit, Edited, without
from harness.replay.scene import Scene, slots
from harness.replay.sorts import BACKWARD, DATA, FORWARD, OPTIMIZER, Sort
from harness.replay.stalls import HELD, STALLED
from harness.replay.uneven_work import uneven


@dataclass(frozen=True)
class WhatIfKind:
    """One change. `bound`: no run reaches it; it says how much there is to gain at most. same_work: it leaves the
    model's operators as they are."""

    name: str
    meaning: str
    edit: Edit
    bound: bool = False
    same_work: bool = True


def _without(sorts: tuple[Sort, ...], phase: int) -> Callable[[Scene], Edited | None]:
    return lambda scene: without(scene, slots(sorts, phase))


def _like_the_others(scene: Scene) -> Edited | None:
    return next((Edited(found.lengths) for found in uneven(scene)), None)


def _no_gaps(scene: Scene) -> Edited | None:
    gaps = (Sort.HOST_GAP, Sort.HOST_STALL)
    return without(scene, [s for phase in (FORWARD, BACKWARD, OPTIMIZER) for s in slots(gaps, phase)])


def _faster_products(scene: Scene) -> Edited | None:
    return without(scene, slots((Sort.HOST_PRODUCT, Sort.DEVICE_PRODUCT)), left=0.5)


WHAT_IFS: tuple[WhatIfKind, ...] = (
    WhatIfKind("no-data-stall", "no waiting for data", _without((Sort.HOST_GAP, *HELD), DATA)),
    *(
        WhatIfKind(
            f"no-stall-{PHASES[phase]}",
            f"no stall longer than the usual gap in {PHASES[phase]}",
            _without(STALLED, phase),
        )
        for phase in (FORWARD, BACKWARD, OPTIMIZER)
    ),
    WhatIfKind(
        "rank-like-others",
        "the slowest rank's work as large as the others'",
        _like_the_others,
        same_work=False,
    ),
    WhatIfKind(
        "no-host-gaps",
        "no time between operators, as with CUDA graphs or larger kernels",
        _no_gaps,
        bound=True,
    ),
    WhatIfKind("gas-x2", "gradients reduced half as often (accumulation × 2)", batches.accumulated(2)),
    WhatIfKind("gas-x4", "gradients reduced a quarter as often (accumulation × 4)", batches.accumulated(4)),
    WhatIfKind(
        "micro-batch-x2",
        "twice the micro-batch, in operators that take twice as long",
        batches.larger,
        same_work=False,
    ),
    WhatIfKind("micro-batches-x2", "twice the micro-batches through the pipeline", batches.more_in_pipeline),
    WhatIfKind("one-bucket", "gradients in buckets of 25 MB", network.larger_buckets),
    WhatIfKind(
        "free-communication",
        "messages that take no time; ranks still wait for each other",
        network.free,
        bound=True,
    ),
    WhatIfKind("bandwidth-x2", "twice the bandwidth, by the job's own α and β", network.changed(1, 0.5)),
    WhatIfKind("latency-half", "half the latency, by the job's own α and β", network.changed(0.5, 1)),
    WhatIfKind(
        "products-x2",
        "matrix products twice as fast, as bf16 may make them",
        _faster_products,
        same_work=False,
    ),
)
