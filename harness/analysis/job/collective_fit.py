"""Collectives by phase, and the straight line through time against message size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.analysis.job.matching import Crossing
from harness.analysis.process.phases import PHASES
from harness.analysis.summary import CollectiveFit, CollectivePhase, MessageSize, Withheld

MIN_POINTS = 3  # two points always lie on a line
MIN_R_SQUARED = 0.9  # below it the size of a message says too little about its time


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
            least_bytes=sums[kind, phase, "bytes"],
            duration_ns=sums[kind, phase, "duration_ns"],
        )
        for kind, phase in {(kind, phase) for kind, phase, _ in sums}
    ]
    return sorted(rows, key=lambda r: (-r.duration_ns, r.kind, r.phase))


def fits(sizes: Sequence[MessageSize]) -> list[CollectiveFit]:
    """α (latency) and β (time per byte) of every kind and group size with enough different message sizes."""
    return [fit for fit, _ in _judged(sizes)]


def withheld_fits(sizes: Sequence[MessageSize]) -> list[Withheld]:
    """Which α and β are not given, and why."""
    return [
        Withheld(field="collective_fits.alpha_ns, beta_ns_per_byte", reason=f"{_whose(fit)}: {why}")
        for fit, why in _judged(sizes)
        if why
    ]


def _whose(fit: CollectiveFit) -> str:
    waiting = ", waiting included" if fit.includes_waiting else ""
    group = f"{fit.group_size} ranks" if fit.group_size else "groups of unknown size"
    return f"{fit.kind} of {group}{waiting}"


def _judged(sizes: Sequence[MessageSize]) -> Iterator[tuple[CollectiveFit, str]]:
    """Every fit, with why its α and β are not given; an empty reason where they are."""
    groups: dict[tuple[str, int | None, bool], list[MessageSize]] = {}
    for row in sizes:
        groups.setdefault((row.kind, row.group_size, row.includes_waiting), []).append(row)
    for rows in groups.values():
        if len(rows) >= MIN_POINTS:
            fit = _fit(rows)
            why = _objection(fit)
            nothing = {"alpha_ns": None, "beta_ns_per_byte": None}
            yield (fit.model_copy(update=nothing) if why else fit), why


def _objection(fit: CollectiveFit) -> str:
    """What speaks against a fit as a latency and a bandwidth."""
    if fit.r_squared < MIN_R_SQUARED:
        return (
            f"its {fit.points} message sizes do not lie on a straight line (R² {fit.r_squared:.2f}, at least "
            f"{MIN_R_SQUARED} is needed)"
        )
    if (fit.beta_ns_per_byte or 0) <= 0:
        return "larger messages took no longer"
    return (
        f"the latency would be negative ({(fit.alpha_ns or 0) / 1e3:.1f} µs)"
        if (fit.alpha_ns or 0) < 0
        else ""
    )


def _fit(rows: list[MessageSize]) -> CollectiveFit:
    x = np.array([r.bytes for r in rows], np.float64)
    y = np.array([r.median_transfer_ns for r in rows], np.float64)
    centred = x - x.mean()
    beta = float(centred @ y / (centred @ centred))
    alpha = float(y.mean() - beta * x.mean())
    spread = float(((y - y.mean()) ** 2).sum())
    left = float(((y - alpha - beta * x) ** 2).sum())
    return CollectiveFit(
        kind=rows[0].kind,
        group_size=rows[0].group_size,
        points=len(rows),
        alpha_ns=alpha,
        beta_ns_per_byte=beta,
        r_squared=1 - left / spread if spread else 1.0,
        includes_waiting=rows[0].includes_waiting,
    )
