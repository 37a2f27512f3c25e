"""The tables of the slowdown by stragglers: by operation, by stage and by worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.metrics import Number
from harness.analysis.summary import StragglerStage, StragglerWorker, Summary
from harness.format.format import duration, percent
from harness.report.tables.table import Column, File, TableOf, plain

_IN_TERMINAL = 8  # workers


class _Operation(NamedTuple):
    name: str
    slowdown: float
    share: float | None


def _operations(s: Summary) -> Sequence[_Operation]:
    if s.slowdown is None:
        return ()
    shares = s.slowdown.shares.operations if s.slowdown.shares else {}
    return [_Operation(name, ratio, shares.get(name)) for name, ratio in s.slowdown.by_operation.items()]


def _stages(s: Summary) -> Sequence[StragglerStage]:
    return s.slowdown.stages if s.slowdown else ()


def _workers(s: Summary) -> Sequence[StragglerWorker]:
    return s.slowdown.workers if s.slowdown else ()


def _signed(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


BY_OPERATION = TableOf[_Operation](
    caption="Slowdown by operation: S with all else ideal, and what a step would save with this ideal",
    rows=_operations,
    columns=(
        Column("operation", lambda x: x.name),
        Column("S", lambda x: f"{x.slowdown:.3f}"),
        Column("of the loss", lambda x: percent(x.share)),
    ),
    section="stragglers",
    topic="stragglers",
    file=File(
        "straggler_operations",
        lambda s: ({"operation": x.name, "slowdown": x.slowdown, "share": x.share} for x in _operations(s)),
    ),
    numbers=(
        Number(
            "straggler_slowdown",
            "slowdown by stragglers",
            lambda s: s.slowdown.slowdown if s.slowdown else None,
            "`stragglers.slowdown`, of a timeline of operations.",
        ),
    ),
)

BY_STAGE = TableOf[StragglerStage](
    caption="Slowdown by stage, and the mean pass of a micro-batch",
    rows=_stages,
    columns=(
        Column("stage", lambda x: f"stage {x.stage}"),
        Column("S", lambda x: f"{x.slowdown:.3f}"),
        Column("forward", lambda x: duration(x.forward_ns)),
        Column("backward", lambda x: duration(x.backward_ns)),
        Column("beside the others", lambda x: _signed(x.work)),
    ),
    section="stragglers",
    topic="stragglers",
    file=File("straggler_stages", lambda s: map(plain, _stages(s))),
)

BY_WORKER = TableOf[StragglerWorker](
    caption="Slowdown by worker: the smaller one of its stage's and of its data-parallel rank's",
    rows=_workers,
    columns=(
        Column("worker", lambda x: f"rank {x.rank}"),
        Column("stage", lambda x: str(x.stage)),
        Column("DP rank", lambda x: str(x.dp_rank)),
        Column("S", lambda x: f"{x.slowdown:.3f}"),
        Column("beside its stage", lambda x: _signed(x.slower)),
    ),
    figure="straggler-workers",
    topic="stragglers",
    most=_IN_TERMINAL,
    rest="workers",
    file=File("straggler_workers", lambda s: map(plain, _workers(s))),
)
