"""What of a job's parts adds up: tables by name, sums by kind, cause, phase and direction, and each device's times.

`added` is associative: sums of sums are the sums of all, in whatever groups the ranks come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

from harness.analysis.job.pop import DeviceTimes, device_times, joined_times
from harness.analysis.process.copies import merge_copies
from harness.analysis.process.part import RankPart, unpack_tables
from harness.analysis.process.phases import PhaseSums
from harness.analysis.process.ranges import RangeSums
from harness.analysis.summary import Copy

Label = tuple[str, str | None]  # kind, precision
Kernel = tuple[str, str, str | None]  # name, kind, precision


@dataclass(frozen=True)
class Sums:
    """Of some ranks. kernels: count, total, shortest, longest; kinds: count, total. Nanoseconds."""

    kernels: dict[Kernel, list[int]] = field(default_factory=dict)
    ranges: RangeSums = field(default_factory=dict)
    phases: PhaseSums = field(default_factory=dict)
    kinds: dict[Label, tuple[int, int]] = field(default_factory=dict)
    causes: Counter[str] = field(default_factory=Counter)
    copies: list[Copy] = field(default_factory=list)
    times: DeviceTimes = field(default_factory=DeviceTimes)


def sums_of(parts: Sequence[RankPart]) -> Sums:
    """The sums of parts; the names of one rank in memory at a time."""
    sums = Sums()
    for part in parts:
        kernels, ranges = unpack_tables(part.tables)
        _add_kernels(sums.kernels, kernels)
        _add_ranges(sums.ranges, ranges.items())
        _add_phases(sums.phases, part.phases.items())
        for device in part.devices:
            _add_kinds(sums.kinds, (((k.kind, k.precision), (k.count, k.duration_ns)) for k in device.kinds))
            sums.causes.update({cause.cause: cause.duration_ns for cause in device.idle_causes})
    sums.copies.extend(merge_copies([part.copies for part in parts]))
    times = device_times([device for part in parts for device in part.devices])
    return Sums(sums.kernels, sums.ranges, sums.phases, sums.kinds, sums.causes, sums.copies, times)


def added(of: Sequence[Sums]) -> Sums:
    """The sums of all."""
    total = Sums()
    for sums in of:
        _add_kernels(total.kernels, ((*name, *row) for name, row in sums.kernels.items()))
        _add_ranges(total.ranges, sums.ranges.items())
        _add_phases(total.phases, sums.phases.items())
        _add_kinds(total.kinds, sums.kinds.items())
        total.causes.update(sums.causes)
    copies, times = merge_copies([sums.copies for sums in of]), joined_times([sums.times for sums in of])
    return Sums(total.kernels, total.ranges, total.phases, total.kinds, total.causes, copies, times)


def _add_kernels(sums: dict[Kernel, list[int]], more: Iterable[tuple[Any, ...]]) -> None:
    """more: as part.KernelSums has them. The hottest loop of a merge."""
    for name, kind, precision, count, total, low, high in more:
        row = sums.get((name, kind, precision))
        if row is None:
            sums[name, kind, precision] = [count, total, low, high]
            continue
        row[0] += count
        row[1] += total
        row[2] = min(row[2], low)
        row[3] = max(row[3], high)


def _add_ranges(sums: RangeSums, more: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    for name, numbers in more:
        before = sums.get(name)
        sums[name] = tuple(map(add, before, numbers)) if before else tuple(numbers)


def _add_phases(sums: PhaseSums, more: Iterable[tuple[str, tuple[int, int, int | None, int | None]]]) -> None:
    for name, row in more:
        a, b, c, d = sums.get(name, (0, 0, 0, 0))
        sums[name] = (a + row[0], b + row[1], _added(c, row[2]), _added(d, row[3]))


def _added(a: int | None, b: int | None) -> int | None:
    """The sum; None where one of the ranks has no number."""
    return None if a is None or b is None else a + b


def _add_kinds(sums: dict[Label, tuple[int, int]], more: Iterable[tuple[Label, tuple[int, int]]]) -> None:
    for label, (count, ns) in more:
        before = sums.get(label, (0, 0))
        sums[label] = (before[0] + count, before[1] + ns)
