"""The hardware counters of one device, as nsys samples them: their means, and some of them over its window."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import CounterOverTime, MetricAverage
from harness.traces.trace import F64, I64

MOST_COLUMNS = 60


class Counter(NamedTuple):
    """A counter that is shown over time. pattern: of nsys' names, which differ between GPUs. of: what it is a share
    of. part: of the device."""

    pattern: str
    of: str
    part: Literal["compute", "memory", "link"]


COUNTERS = (  # in the order of the page
    Counter(r"SMs? Active", "of the SMs have work", "compute"),
    Counter(r"SM Issue", "of the cycles issue an instruction", "compute"),
    Counter(r"Tensor.* Active", "of the cycles use the tensor cores", "compute"),
    Counter(r"Compute Warps in Flight", "of the places for warps are in use (occupancy)", "compute"),
    Counter(r"DRAM (Read|Write)", "of the memory's peak", "memory"),
    Counter(r"NVLink (RX|TX)(?!.*Protocol)", "of the links' peak", "link"),
    Counter(r"PCIe (RX|TX)", "of the link's peak", "link"),
)


def counter_of(name: str) -> Counter | None:
    """How a counter of nsys is shown over time; None if it is not, or if it names another unit than per cent.

    >>> counter_of("SMs Active [Throughput %]").of, counter_of("GPC Clock Frequency [MHz]")
    ('of the SMs have work', None)
    """
    if "[" in name and "%" not in name:
        return None
    return next((each for each in COUNTERS if re.search(each.pattern, name)), None)


def averages(m: MeasuredProcess, device: int) -> list[MetricAverage]:
    """The mean of every counter over the device's window."""
    rows = [
        MetricAverage(metric=name, mean=float(value.mean()), samples=len(value))
        for name, _, value in _in_window(m, device)
    ]
    return sorted(rows, key=lambda row: row.metric)


def over_time(m: MeasuredProcess, device: int) -> list[CounterOverTime]:
    """The counters that show what limits a device, in columns of equal length."""
    start, end = m.windows[device]
    found: list[CounterOverTime] = []
    for name, time_ns, value in _in_window(m, device):
        if counter_of(name) is None:
            continue
        column_ns = max(-(-(end - start) // min(MOST_COLUMNS, len(value))), 1)
        columns = -(-(end - start) // column_ns)
        at = (time_ns - start) // column_ns
        count = np.bincount(at, minlength=columns)
        total = np.bincount(at, value, columns)
        means = [float(f"{t / n:.3g}") if n else None for t, n in zip(total.tolist(), count.tolist(), strict=True)]
        found.append(CounterOverTime(metric=name, column_ns=column_ns, mean=means))
    places = {each: place for place, each in enumerate(COUNTERS)}
    return sorted(found, key=lambda row: (places[counter_of(row.metric) or COUNTERS[0]], row.metric))


def _in_window(m: MeasuredProcess, device: int) -> Iterator[tuple[str, I64, F64]]:
    """Name, moments and values of each counter of the device that has samples in its window."""
    start, end = m.windows[device]
    for series in m.view.trace.metrics:
        inside = (series.time_ns >= start) & (series.time_ns < end)
        if series.device == device and inside.any():
            yield series.name, series.time_ns[inside], series.value[inside]
