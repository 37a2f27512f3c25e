"""What may be changed in a replay: `WHAT_IFS` has each change with its edit of the arcs' lengths, which is None where
it does not apply. Where a rule looks for a cause, the change takes out what the rule found."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.labels import is_compiled
from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.process.phases import Phase
from harness.replay.attribute.causes import CAUSES, Rule
from harness.replay.attribute.host_causes import STALLED
from harness.replay.attribute.rank_causes import heavier, uneven
from harness.replay.graph.graph import TimeCategory, slots
from harness.replay.measure.context import ReplayContext
from harness.replay.remove import changes
from harness.replay.remove.changes import Edit, without
from harness.replay.remove.edits import EditedLengths, larger_buckets, rows_of, without_activities

_STALLS = (IdleTime.HOST.label, IdleTime.NOT_RECORDED.label, IdleTime.ALLOCATION.label, IdleTime.COLLECTOR.label)

OF_ONE_STEP = " (for the work of one step)"  # of a step that does the work of several


@dataclass(frozen=True)
class WhatIfKind:
    """One change. `bound`: no run reaches it; it says how much there is to gain at most. same_work: it leaves the
    model's operators as they are. more_on_cpus: where messages are sent by the cores that compute, a run gains more,
    since they then compute faster, too. operators: on a CPU it changes the time of operators; any other change gains at
    most what is not in an operator."""

    name: str
    meaning: str
    edit: Edit
    bound: bool = False
    same_work: bool = True
    more_on_cpus: bool = False
    operators: bool = False


def _without_stalls(*phases: Phase) -> Edit:
    """On a GPU what the host did while the devices had no work; else what is longer than usual."""

    def edit(context: ReplayContext) -> EditedLengths | None:
        if context.on_cpu:
            return without(context, [each for phase in phases for each in slots(STALLED, phase)])
        rows = rows_of(context.job, _STALLS, phases)
        return EditedLengths(without_activities(context.job, rows)) if rows else None

    return edit


def _without_found(rule: Rule) -> Edit:
    """The job without any of what a rule suspects."""

    def edit(context: ReplayContext) -> EditedLengths | None:
        found = [own.lengths for own in rule(context) if own.lengths is not None]
        return EditedLengths(context.job.least(found)) if found else None

    return edit


def _no_gaps(context: ReplayContext) -> EditedLengths | None:
    if not context.on_cpu:
        return without(context, slots((TimeCategory.HOST_GAP, TimeCategory.HOST_WORK)))
    gaps = (TimeCategory.HOST_GAP, TimeCategory.HOST_STALL)
    return without(
        context, [s for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER) for s in slots(gaps, phase)]
    )


def _fused(context: ReplayContext) -> EditedLengths | None:
    """Without all that a compiler may fuse into products, and with no time between what is left."""
    if is_compiled(context.summary.kernels):
        return None
    fusible = (TimeCategory.HOST_WORK, TimeCategory.HOST_GAP, TimeCategory.HOST_STALL)
    if not context.on_cpu:
        return without(context, slots((*fusible, TimeCategory.DEVICE_WORK, TimeCategory.DEVICE_LAYOUT)))
    return without(context, [s for phase in (Phase.FORWARD, Phase.BACKWARD) for s in slots(fusible, phase)])


WHAT_IFS: tuple[WhatIfKind, ...] = (
    WhatIfKind("no-data-stall", "data loaded ahead, by workers", changes.loaded_ahead),
    *(
        WhatIfKind(
            f"no-host-stall-{phase.label}",
            f"no stall longer than the median gap in {phase.label}",
            _without_stalls(phase),
        )
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    ),
    WhatIfKind("no-checkpoint", "no stall between the phases", _without_stalls(Phase.OTHER, Phase.BETWEEN)),
    *(
        WhatIfKind(
            f"no-{name}",
            entry.without.meaning,
            _without_found(entry.find),
            bound=entry.without.bound,
            same_work=entry.without.same_work,
            operators=entry.without.operators,
        )
        for name, entry in CAUSES.items()
        if entry.without
    ),
    WhatIfKind("no-extra-compute", "no step with more work than the others", _without_found(heavier), operators=True),
    WhatIfKind(
        "rank-like-others",
        "every rank's work as small as the others'",
        _without_found(uneven),
        same_work=False,
        operators=True,
    ),
    WhatIfKind("no-tiny-kernels", "no time between operators (as with CUDA graphs)", _no_gaps, bound=True),
    WhatIfKind(
        "fused",
        "operators that are no products take no time (as at best with torch.compile)",
        _fused,
        bound=True,
        same_work=False,
        operators=True,
    ),
    WhatIfKind("gas-x2", "half of the reductions (accumulation × 2)", changes.accumulated(2)),
    WhatIfKind("gas-x4", "a quarter of the reductions (accumulation × 4)", changes.accumulated(4)),
    WhatIfKind("micro-batch-x2", f"twice the micro-batch{OF_ONE_STEP}", changes.larger, same_work=False),
    WhatIfKind("micro-batches-x2", f"twice the micro-batches{OF_ONE_STEP}", changes.more_in_pipeline),
    WhatIfKind(
        "one-bucket", "gradients in buckets of 25 MB", lambda context: larger_buckets(context.job), more_on_cpus=True
    ),
    WhatIfKind("no-communication", "messages take no time, ranks wait as before", changes.free, bound=True),
    WhatIfKind("products-x2", "matrix products twice as fast (as 16 bits may)", changes.in_16_bits, same_work=False),
)
