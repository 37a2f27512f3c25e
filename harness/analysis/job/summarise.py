"""One job's parts to its Summary: sums, sorts and comparisons of ranks. Opens no trace."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from harness.analysis.job import collective_table, grouping
from harness.analysis.job.blocks import blocks_of
from harness.analysis.job.collective_table import collective_phases, fits
from harness.analysis.job.grouping import align_clocks
from harness.analysis.job.matching import JobCollectives, match_collectives
from harness.analysis.job.pacing import from_zero, pacing
from harness.analysis.job.pop import pop_efficiency, sums_of
from harness.analysis.job.profiler_waits import without_profilers
from harness.analysis.process.copies import with_links
from harness.analysis.process.device import kind_table
from harness.analysis.process.idle import cause_table
from harness.analysis.process.part import KernelSum, RankPart
from harness.analysis.process.phases import phase_table
from harness.analysis.process.pipeline import pipeline, withheld_theory
from harness.analysis.process.ranges import range_table
from harness.analysis.process.rows import ProcessRows
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import (
    TOP_KERNELS,
    Clock,
    Collective,
    Device,
    KernelTime,
    NodeNetwork,
    Pipeline,
    Problem,
    Quality,
    RankSteps,
    RecordingVerdict,
    Spread,
    Steps,
    Summary,
    Withheld,
)
from harness.traces.trace import I64

TOP_UNCLASSIFIED = 30
VERY_MANY = 1024  # ranks above which problems are shortened
MOST_NAMED = 64  # problems of one kind in a job of very many ranks
_SEVERITIES = tuple(RecordingVerdict)  # the worst last


def summarise_job(
    parts: Sequence[RankPart], world_size: int | None = None, switches: Mapping[str, str] | None = None
) -> Summary:
    """The summary of one job's parts, in any order.

    `world_size`: as the training recorded it; the traces of one node do not show the other nodes. `switches`: the
    network switch of each host.
    """
    parts = sorted(parts, key=lambda part: part.key)
    sums = sums_of(parts)
    size = grouping.world_size(parts, world_size)
    job = match_collectives(parts, size, blocks_of(parts))
    clocks = align_clocks(parts, job.matched)
    job, of_profilers = without_profilers(job, parts, clocks)
    kernels = _kernel_rows(sums.kernels.values())
    devices = [device for part in parts for device in part.devices]
    sizes = collective_table.message_sizes(job)
    fitted, without_fit = fits(sizes)
    collectives = collective_table.tabulate(job, clocks)
    pipe = _pipeline(parts, clocks, size)
    no_causes = (why for part in parts for field, why in part.withheld if field == "idle_causes")  # for its kind
    obstacle = next(no_causes, "") or _unread(parts, size, devices)
    pop, without_pop = pop_efficiency(sums.times, parts[0].window, obstacle)
    return Summary(
        quality=_quality(
            parts,
            [*grouping.judge_job(parts, size, job, clocks), *of_profilers],
            [*_withheld(parts, job, size, collectives), *without_fit, *withheld_theory(pipe), *without_pop],
        ),
        window=parts[0].window,
        sources=[part.source for part in parts],
        world_size=size,
        ranks=sorted({part.source.rank for part in parts if part.source.rank is not None}),
        hosts=sorted({part.source.host for part in parts if part.source.host is not None}),
        backend=next((part.backend for part in parts if part.backend), None),
        steps=_steps(parts),
        pacing=pacing(parts, switches),
        network=_network(parts),
        devices=devices,
        pop=pop,
        kinds=kind_table([(*label, count, ns) for label, (count, ns) in sums.kinds.items()]),
        kernels=kernels[:TOP_KERNELS],
        unclassified=[row for row in kernels if row.kind == "other"][:TOP_UNCLASSIFIED],
        idle_causes=cause_table(sums.causes),
        phases=phase_table(sums.phases),
        ranges=range_table(sums.ranges),
        collectives=collectives,
        collective_phases=collective_phases(job, sum(len(p.steps.durations_ns) for p in parts)),
        message_sizes=sizes,
        collective_fits=fitted,
        stragglers=collective_table.stragglers(job, clocks),
        clocks=sorted(clocks.values(), key=lambda c: c.host) if len(clocks) > 1 else [],
        pipeline=pipe,
        copies=with_links(sums.copies, {device.name for device in devices}),
        **_rows(parts) | {"long_messages": collective_table.long_messages(job, clocks)},
    )


def _network(parts: Sequence[RankPart]) -> list[NodeNetwork]:
    """Each node's network by the longest of its recordings."""
    longest: dict[str, NodeNetwork] = {}
    for found in (part.network for part in parts if part.network):
        known = longest.get(found.node)
        if known is None or found.duration_ns > known.duration_ns:
            longest[found.node] = found
    return [longest[node] for node in sorted(longest)]


def _rows(parts: Sequence[RankPart]) -> dict[str, Any]:
    """The rows of all processes, one process after the other, by the Summary's fields."""
    rows: dict[str, list[Any]] = {name: [] for name in ProcessRows.__struct_fields__}
    for part in parts:
        for name, of_process in part.rows.by_name().items():
            rows[name] += of_process
    return rows


def _quality(parts: Sequence[RankPart], of_job: list[Problem], withheld_of_job: list[Withheld]) -> Quality:
    problems = [*(f for part in parts for f in part.problems), *of_job]
    problems.sort(key=lambda f: -_SEVERITIES.index(f.severity))
    if len(parts) > VERY_MANY:
        problems = [*_shortened(problems)]
    withheld = dict.fromkeys(pair for part in parts for pair in part.withheld)
    verdict = max((f.severity for f in problems), key=_SEVERITIES.index, default=RecordingVerdict.GOOD)
    return Quality(
        verdict=verdict,
        problems=problems,
        withheld=[*(Withheld(field=field, reason=reason) for field, reason in withheld), *withheld_of_job],
    )


def _shortened(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The first of each kind, and how many more there are."""
    kinds: dict[tuple[RecordingVerdict, str], list[Problem]] = {}
    for found in problems:
        kinds.setdefault((found.severity, found.what), []).append(found)
    for (severity, what), alike in kinds.items():
        yield from alike[:MOST_NAMED]
        if len(alike) > MOST_NAMED:
            evidence = f"and {len(alike) - MOST_NAMED} more, {len(alike)} in all"
            yield Problem(severity=severity, what=what, evidence=evidence)


def _withheld(
    parts: Sequence[RankPart], job: JobCollectives, world_size: int | None, collectives: Sequence[Collective]
) -> Iterator[Withheld]:
    """The numbers of collectives that are not given where not all members were read or matched."""
    half_read = [m for m in job.matched if not m.complete and len(m.parts) > 1]
    if half_read or (len(parts) < (world_size or 1) and (job.matched or job.unmatched)):
        reason = "waiting is known only if every rank of the group was read"
        yield Withheld(field="collectives.waiting_ns", reason=reason)
    rows = ((c.algorithm_bandwidth_gb_per_s, c.bus_bandwidth_gb_per_s) for c in collectives)
    if any(algorithm is not None and bus is None for algorithm, bus in rows):
        reason = "the size of a group was not recorded, and its ranks were not all read, or could not be matched"
        yield Withheld(field="collectives.bus_bandwidth_gb_per_s", reason=reason)


def _unread(parts: Sequence[RankPart], world_size: int | None, devices: Sequence[Device]) -> str:
    """How many ranks were not read, as a reason; empty: all were, as far as is known."""
    if len(parts) < (world_size or 1):
        return f"{len(parts)} of {world_size} ranks were read, and the device with most work may be missing"
    if world_size is None and len(devices) == 1 and devices[0].communication_ns:
        return "one device was read, and those with which it communicates were not"
    return ""


def _steps(parts: Sequence[RankPart]) -> Steps:
    """Steps of all ranks. Straggler score: the slowest rank's median over the median of the ranks' medians."""
    medians = {i: float(median(p.steps.durations_ns)) for i, p in enumerate(parts) if p.steps.durations_ns}
    every = np.array([d for part in parts for d in part.steps.durations_ns], np.int64)
    between = sum(ns for part in parts for ns in part.steps.between_ns)
    sources = dict.fromkeys(part.steps.source for part in parts if part.steps.durations_ns)
    slowest = max(medians, key=lambda i: (medians[i], -i)) if len(medians) > 1 else None
    return Steps(
        source=" and ".join(sorted(sources, key=by_periodicity)) or parts[0].steps.source,
        found=sum(part.steps.found for part in parts),
        counted=len(every),
        excluded_warmup=sum(part.steps.warmup for part in parts),
        excluded_cut_off=sum(part.steps.cut_off for part in parts),
        excluded_empty=sum(part.steps.empty for part in parts),
        excluded_work_lost=sum(part.steps.left_out for part in parts),
        on_device=any(part.steps.on_device for part in parts),
        duration=spread(every) if len(every) else None,
        mean_ns=round(float(every.mean())) if len(every) else None,
        between_ns=round(between / len(every)) if len(every) else None,
        per_rank=[
            RankSteps(
                rank=part.source.rank,
                durations_ns=part.steps.durations_ns,
                median_ns=round(medians[i]) if i in medians else None,
                steps=from_zero(part.steps.numbers),
            )
            for i, part in enumerate(parts)
        ],
        straggler_score=medians[slowest] / float(median(medians.values())) if slowest is not None else None,
        slowest_rank=parts[slowest].source.rank if slowest is not None else None,
    )


def spread(values: I64) -> Spread:
    """A distribution in five numbers; percentiles interpolate linearly and round to whole nanoseconds."""
    low, middle, high = (round(float(q)) for q in np.quantile(values, (0.1, 0.5, 0.9)))
    return Spread(
        count=len(values), median_ns=middle, min_ns=int(values.min()), max_ns=int(values.max()), p10_ns=low, p90_ns=high
    )


def _kernel_rows(kernels: Collection[KernelSum]) -> list[KernelTime]:
    total = max(sum(kernel.total_ns for kernel in kernels), 1)
    return sorted((_kernel_row(kernel, total) for kernel in kernels), key=_most_time_first)


def _most_time_first(kernel_time: KernelTime) -> tuple[int, str, str]:
    return -kernel_time.duration_ns, kernel_time.name, kernel_time.precision or ""


def _kernel_row(kernel: KernelSum, total_ns: int) -> KernelTime:
    beside = None if kernel.overlapped_ns < 0 else kernel.overlapped_ns
    is_exposed_known = kernel.kind == "communication" and beside is not None
    return KernelTime(
        name=kernel.name,
        kind=kernel.kind,
        precision=kernel.precision,
        count=kernel.count,
        duration_ns=kernel.total_ns,
        mean_ns=round(kernel.total_ns / kernel.count),
        min_ns=kernel.shortest_ns,
        max_ns=kernel.longest_ns,
        share=kernel.total_ns / total_ns,
        overlapped_ns=beside,
        exposed_ns=kernel.total_ns - (beside or 0) if is_exposed_known else None,
    )


def _pipeline(parts: Sequence[RankPart], clocks: dict[str, Clock], world_size: int | None) -> Pipeline | None:
    staged = [
        (part.source.rank, clocks[part.clock].offset_ns - (part.epoch_ns or 0), part.stage)
        for part in parts
        if part.stage is not None and part.clock in clocks
    ]
    return pipeline(staged, world_size) if staged else None
