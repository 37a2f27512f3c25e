"""Collectives by phase, and the straight line through time against message size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.phases import PHASES
from harness.analysis.skew import Crossing
from harness.analysis.summary import CollectiveFit, CollectivePhase, MessageSize

MIN_POINTS = 3  # two points always lie on a line


def collective_phases(crossing: Crossing, steps: int) -> list[CollectivePhase]:
    """One row per kind and phase, summed over ranks. steps: counted steps, summed over ranks as well."""
    sums = crossing.phases
    rows = [
        CollectivePhase(
            kind=kind,
            phase=PHASES[phase],
            count=sums[kind, phase, "count"],
            count_per_step=sums[kind, phase, "count"] / steps if steps else None,
            bytes=None if sums[kind, phase, "unsized"] else sums[kind, phase, "bytes"],
            duration_ns=sums[kind, phase, "duration_ns"],
        )
        for kind, phase in {(kind, phase) for kind, phase, _ in sums}
    ]
    return sorted(rows, key=lambda r: (-r.duration_ns, r.kind, r.phase))


def fits(sizes: Sequence[MessageSize]) -> list[CollectiveFit]:
    """α (latency) and β (time per byte) of every kind and group size with enough different message sizes."""
    groups: dict[tuple[str, int | None], list[MessageSize]] = {}
    for row in sizes:
        groups.setdefault((row.kind, row.group_size), []).append(row)
    return [_fit(kind, n, rows) for (kind, n), rows in groups.items() if len(rows) >= MIN_POINTS]


def _fit(kind: str, group_size: int | None, rows: list[MessageSize]) -> CollectiveFit:
    x = np.array([r.bytes for r in rows], np.float64)
    y = np.array([r.median_transfer_ns for r in rows], np.float64)
    centred = x - x.mean()
    beta = float(centred @ y / (centred @ centred))
    alpha = float(y.mean() - beta * x.mean())
    spread = float(((y - y.mean()) ** 2).sum())
    left = float(((y - alpha - beta * x) ** 2).sum())
    return CollectiveFit(
        kind=kind,
        group_size=group_size,
        points=len(rows),
        alpha_ns=alpha,
        beta_ns_per_byte=beta,
        r_squared=1 - left / spread if spread else 1.0,
    )
