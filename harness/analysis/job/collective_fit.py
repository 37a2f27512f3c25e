"""Collectives by phase, and the straight line through time against message size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.job.matching import JobCollectives
from harness.analysis.process.phases import PHASES
from harness.analysis.summary import CollectiveFit, CollectivePhase, MessageSize, Withheld
from harness.common.alpha_beta import AlphaBeta, fit_alpha_beta

MIN_R_SQUARED = 0.9  # below it the time of a message depends too little on its size


def collective_phases(job: JobCollectives, steps: int) -> list[CollectivePhase]:
    """One row per kind and phase, summed over ranks. steps: counted steps, summed over ranks as well."""
    sums = job.phases
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
    """The α and β that are not given, and why."""
    return [
        Withheld(field="collective_fits.alpha_ns, beta_ns_per_byte", reason=f"{_described(fit)}: {why}")
        for fit, why in _judged(sizes)
        if why
    ]


def _described(fit: CollectiveFit) -> str:
    waiting = ", waiting included" if fit.includes_waiting else ""
    group = f"{fit.group_size} ranks" if fit.group_size else "groups of unknown size"
    return f"{fit.kind} of {group}{waiting}"


def _judged(sizes: Sequence[MessageSize]) -> Iterator[tuple[CollectiveFit, str]]:
    """Every fit, and the reason why its α and β are not given; empty where they are given."""
    groups: dict[tuple[str, int | None, bool], list[MessageSize]] = {}
    for row in sizes:
        groups.setdefault((row.kind, row.group_size, row.includes_waiting), []).append(row)
    for (kind, group_size, waits), rows in groups.items():
        line = fit_alpha_beta([r.bytes for r in rows], [r.median_transfer_ns for r in rows])
        if line is not None:
            why = _objection(line)
            fit = CollectiveFit(
                kind=kind,
                group_size=group_size,
                points=line.points,
                alpha_ns=None if why else line.alpha_ns,
                beta_ns_per_byte=None if why else line.beta_ns_per_byte,
                r_squared=line.r2_log,
                includes_waiting=waits,
            )
            yield fit, why


def _objection(line: AlphaBeta) -> str:
    """Why a line does not show a latency and a bandwidth; empty: it does."""
    if line.beta_ns_per_byte == 0:
        return "its times do not grow with the message size"
    if line.r2_log < MIN_R_SQUARED:
        return (
            f"its {line.points} message sizes do not lie on a straight line (R² {line.r2_log:.2f}, at least "
            f"{MIN_R_SQUARED} is needed)"
        )
    return ""
