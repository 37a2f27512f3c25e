"""The efficiencies of POP and TALP from the devices' times. Knows neither traces nor a replay: `with_ideal_network`
takes the one number that a replay adds.

Sources: POP standard metrics (co-design.pop-coe.eu/metrics): parallel, load balance, communication, serialisation and
transfer efficiency; TALP's hierarchy of devices (DLB, src/talp/perf_metrics.c, gpu_*), which adds orchestration.
docs/development/decisions/010-pop-efficiency.md says where this differs from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from operator import add
from typing import NamedTuple, TypeVar

import numpy as np

from harness.analysis.process.copies import merge_copies
from harness.analysis.process.part import KernelSum, RankPart, tables_of
from harness.analysis.process.phases import PhaseSums
from harness.analysis.process.ranges import RangeSums
from harness.analysis.summary import Copy, Device, PopEfficiency, TimeSplit, Window, Withheld
from harness.traces.trace import I64

FIELD = "pop"


class Times(NamedTuple):
    """One device over the steps that count; useful <= active <= elapsed."""

    useful_ns: int
    active_ns: int
    elapsed_ns: int


@dataclass(frozen=True)
class DeviceTimes:
    """The times of devices that ran a kernel. of_steps: by the names of their counted steps an array (devices, 1 +
    steps, 3) of useful, active and elapsed nanoseconds, first of the whole window, then of each step.

    unknown: whether of a device exposed communication, or idle time, is not known.
    """

    of_steps: dict[tuple[str, ...], I64] = field(default_factory=dict)
    unknown: tuple[bool, bool] = (False, False)

    def __len__(self) -> int:
        return sum(map(len, self.of_steps.values()))


def device_times(devices: Sequence[Device]) -> DeviceTimes:
    """Devices without a kernel are not counted."""
    working = [d for d in devices if d.kernels]
    rows: dict[tuple[str, ...], list[list[Times]]] = {}
    for d in working:
        rows.setdefault(tuple(step.step for step in d.steps), []).append([_of(d), *map(_of, d.steps)])
    in_graphs = any(d.exposed_communication_ns is None for d in working)
    holes = any(d.idle_ns is None for d in working)
    return DeviceTimes({names: np.array(each, np.int64) for names, each in rows.items()}, (in_graphs, holes))


def _of(split: TimeSplit) -> Times:
    exposed = (split.exposed_communication_ns or 0) + split.exposed_memory_ns
    return Times(split.compute_ns, split.compute_ns + exposed, split.window_ns)


def pop_efficiency(devices: DeviceTimes, window: Window, missing: str) -> tuple[PopEfficiency | None, list[Withheld]]:
    """The efficiencies of a job's devices, else the reason why there are none; without devices neither.

    Useful is compute; active adds exposed communication and exposed copies; elapsed is the longest device's time, as
    TALP takes the longest process's. `missing`: what was not read or recorded, in words; empty if all was.
    """
    if not len(devices):
        return None, []
    shared = _shared_steps(list(devices.of_steps)) if window is Window.STEPS else []
    times = _times(devices, shared)
    if reason := missing or _obstacle(devices, shared, times):
        return None, [Withheld(field=FIELD, reason=reason)]
    return from_times(times, len(shared or ())), []


def _obstacle(devices: DeviceTimes, shared: list[str] | None, times: Sequence[Times]) -> str:
    """Why the efficiencies of these devices would mislead; empty: they do not."""
    in_graphs, holes = devices.unknown
    if holes:
        return "the recording of a device has holes"
    if in_graphs:
        return "communication inside CUDA graphs counts as compute"
    if shared is None:
        return "the ranks did not count the same steps"
    if not any(t.useful_ns for t in times):
        return "no device computed anything"
    return ""


def _shared_steps(names: Sequence[tuple[str, ...]]) -> list[str] | None:
    """The names of the steps that every device counted; None: the devices share no step, or a name is not unique.
    Devices without steps share their whole windows, which is an empty list. names: each different list of them."""
    if len(names) == 1:
        return list(names[0])
    common = set(names[0]).intersection(*names)
    unique = all(len(own) == len({*own}) for own in names)
    return [name for name in names[0] if name in common] if common and unique else None


def _times(devices: DeviceTimes, shared: list[str] | None) -> list[Times]:
    """Each device's times: of its whole window, or, where devices counted other steps, of the shared steps alone."""
    tables: list[I64] = []
    for names, table in devices.of_steps.items():
        chosen = [1 + i for i, name in enumerate(names) if name in (shared or ())]
        whole = not shared or all(len(own) == len(shared) for own in devices.of_steps)
        tables.append(table[:, 0] if whole else table[:, chosen].sum(axis=1))
    return [Times(*row) for table in tables for row in table.tolist()]


def from_times(times: Sequence[Times], steps: int) -> PopEfficiency:
    """The efficiencies of at least one device that computed."""
    useful, most = sum(t.useful_ns for t in times), max(t.useful_ns for t in times)
    active, elapsed = max(t.active_ns for t in times), max(t.elapsed_ns for t in times)
    return PopEfficiency(
        devices=len(times),
        steps=steps,
        elapsed_ns=elapsed,
        useful_ns=useful,
        max_useful_ns=most,
        max_active_ns=active,
        parallel=useful / (elapsed * len(times)),
        load_balance=useful / (most * len(times)),
        communication=most / active,
        orchestration=active / elapsed,
    )


def with_ideal_network(efficiency: PopEfficiency, ideal_elapsed_ns: int) -> PopEfficiency:
    """The efficiencies with `serialisation` and `transfer`, from the elapsed time that a replay of the same steps gives
    for a network of zero latency and infinite bandwidth: transfer = ideal elapsed / elapsed.

    Both stay None, with the reason in `split_unknown`, where one of them would exceed 1: the replay takes longer than
    the run did, or it also saves idle time, which is no part of communication efficiency.
    """
    e, transfer, serialisation, reason = efficiency, None, None, None
    if ideal_elapsed_ns > e.elapsed_ns:
        reason = "with an ideal network the replay takes longer than the run did: it is not exact enough"
    elif Fraction(ideal_elapsed_ns, e.elapsed_ns) < Fraction(e.max_useful_ns, e.max_active_ns):
        reason = "an ideal network also saves idle time, which does not belong to communication efficiency"
    else:
        transfer = ideal_elapsed_ns / e.elapsed_ns
        serialisation = (e.max_useful_ns * e.elapsed_ns) / (e.max_active_ns * ideal_elapsed_ns)
    split = {"serialisation": serialisation, "transfer": transfer, "split_unknown": reason}
    return e.model_copy(update={**split, "ideal_elapsed_ns": ideal_elapsed_ns})


Label = tuple[str, str | None]  # kind, precision
Kernel = tuple[str, str, str | None]  # name, kind, precision
AnyKey = TypeVar("AnyKey", str, Label)


@dataclass(frozen=True)
class Sums:
    """Of some ranks. kinds: count, total. Nanoseconds."""

    kernels: dict[Kernel, KernelSum] = field(default_factory=dict)
    ranges: RangeSums = field(default_factory=dict)
    phases: PhaseSums = field(default_factory=dict)
    kinds: dict[Label, tuple[int, ...]] = field(default_factory=dict)
    causes: Counter[str] = field(default_factory=Counter)
    copies: list[Copy] = field(default_factory=list)
    times: DeviceTimes = field(default_factory=DeviceTimes)


def sums_of(parts: Sequence[RankPart]) -> Sums:
    """The sums of parts; the names of one rank in memory at a time."""
    sums = Sums()
    for part in parts:
        kernels, ranges = tables_of(part)
        _add_kernels(sums.kernels, kernels)
        _add_rows(sums.ranges, ranges.items())
        _add_phases(sums.phases, part.phases.items())
        for device in part.devices:
            _add_rows(sums.kinds, (((k.kind, k.precision), (k.count, k.duration_ns)) for k in device.kinds))
            sums.causes.update({cause.cause: cause.duration_ns for cause in device.idle_causes})
    times = device_times([device for part in parts for device in part.devices])
    return replace(sums, copies=merge_copies([part.copies for part in parts]), times=times)


def _add_kernels(sums: dict[Kernel, KernelSum], kernel_sums: Iterable[KernelSum]) -> None:
    """The hottest loop of a merge."""
    for one in kernel_sums:
        key = one.name, one.kind, one.precision
        total = sums.get(key)
        if total is None:
            sums[key] = copy(one)
            continue
        total.count += one.count
        total.total_ns += one.total_ns
        # Comparisons take a third less time than min and max.
        if one.shortest_ns < total.shortest_ns:  # noqa: PLR1730
            total.shortest_ns = one.shortest_ns
        if one.longest_ns > total.longest_ns:  # noqa: PLR1730
            total.longest_ns = one.longest_ns
        is_known = one.overlapped_ns >= 0 and total.overlapped_ns >= 0
        total.overlapped_ns = total.overlapped_ns + one.overlapped_ns if is_known else -1


def _add_rows(sums: dict[AnyKey, tuple[int, ...]], more: Iterable[tuple[AnyKey, tuple[int, ...]]]) -> None:
    for key, numbers in more:
        before = sums.get(key)
        sums[key] = tuple(map(add, before, numbers)) if before else tuple(numbers)


def _add_phases(sums: PhaseSums, more: Iterable[tuple[str, tuple[int, int, int | None, int | None]]]) -> None:
    for name, row in more:
        a, b, c, d = sums.get(name, (0, 0, 0, 0))
        sums[name] = (a + row[0], b + row[1], _added(c, row[2]), _added(d, row[3]))


def _added(a: int | None, b: int | None) -> int | None:
    """The sum; None where one of the ranks has no number."""
    return None if a is None or b is None else a + b
