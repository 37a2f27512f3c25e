"""How the host feeds the device: kernel sizes, launch delays, API calls; copies with the bandwidth that they reach."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.kinds import MEMSET, copy_label
from harness.analysis.process.prepared import MeasuredProcess, extent_of
from harness.analysis.summary import ApiTime, Copy, Launches
from harness.traces.trace import Activity, Calls, Events

SHORT_KERNEL_NS = 10_000  # below this, launching costs about as much as running
_TOP_CALLS = 10


def of_process(measured: MeasuredProcess, chosen: NDArray[np.bool_]) -> list[Launches]:
    """Statistics of the kernels marked `chosen` and of the calls that started in the window; none without kernels."""
    view, steps = measured.view, int(measured.steps.counted.sum())
    events = view.events
    kernels = chosen & (events.activity == Activity.KERNEL)
    durations = (events.end_ns - events.start_ns)[kernels]
    if len(durations) == 0:
        return []
    launched = kernels & (events.launch_ns >= 0)
    delays = events.start_ns[launched] - events.launch_ns[launched]
    launches = Launches(
        rank=view.rank,
        kernels=len(durations),
        kernels_per_step=len(durations) / steps if steps else None,
        mean_kernel_ns=round(float(durations.mean())),
        median_kernel_ns=round(float(np.median(durations))),
        short_kernel_fraction=float((durations < SHORT_KERNEL_NS).mean()),
        with_known_launch=len(delays),
        median_delay_ns=round(float(np.median(delays))) if len(delays) else None,
        p90_delay_ns=round(float(np.quantile(delays, 0.9))) if len(delays) else None,
        calls=_api_times(view.calls, view.names, extent_of(measured.windows)),
    )
    return [launches]


def _api_times(calls: Calls, names: list[str], window: tuple[int, int]) -> list[ApiTime]:
    inside = (calls.start_ns >= window[0]) & (calls.start_ns < window[1])
    name, duration = calls.name[inside], (calls.end_ns - calls.start_ns)[inside]
    count = np.bincount(name, minlength=1)
    total = np.bincount(name, weights=duration.astype(np.float64), minlength=1)
    order = np.argsort(-total, kind="stable")[:_TOP_CALLS]
    rows = ((names[i], int(count[i]), float(total[i])) for i in order if count[i])
    return [ApiTime(name=name, count=n, duration_ns=int(ns), mean_ns=round(ns / n)) for name, n, ns in rows]


def copies(events: Events, chosen: NDArray[np.bool_]) -> list[Copy]:
    """Copies and sets per direction. Bandwidth: bytes over the sum of durations."""
    copied = chosen & (events.activity == Activity.MEMCPY)
    rows = [
        _copy(copy_label(int(direction)), events, copied & (events.copy_kind == direction))
        for direction in np.unique(events.copy_kind[copied])
    ]
    sets = chosen & (events.activity == Activity.MEMSET)
    return [*rows, _copy(MEMSET, events, sets)] if sets.any() else rows


def _copy(label: str, events: Events, chosen: NDArray[np.bool_]) -> Copy:
    duration = (events.end_ns - events.start_ns)[chosen]
    size = np.maximum(events.bytes[chosen], 0)
    pageable = events.pageable[chosen] == 1
    return with_bandwidth(
        Copy(
            direction=label,
            count=len(duration),
            bytes=int(size.sum()),
            duration_ns=int(duration.sum()),
            pageable_count=int(pageable.sum()),
            pageable_bytes=int(size[pageable].sum()),
            pageable_ns=int(duration[pageable].sum()),
        )
    )


def with_bandwidth(copy: Copy) -> Copy:
    """The same row with its achieved bandwidth, 10⁹ bytes per second (bytes per nanosecond)."""
    known = copy.bytes > 0 and copy.duration_ns > 0
    return copy.model_copy(update={"bandwidth_gb_per_s": copy.bytes / copy.duration_ns if known else None})


def merge_copies(tables: list[list[Copy]]) -> list[Copy]:
    """One table of several: sums per direction, largest time first."""
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in (row for table in tables for row in table):
        sums[row.direction].update(row.model_dump(exclude={"direction", "bandwidth_gb_per_s"}))
    rows = [with_bandwidth(Copy(direction=d, **fields)) for d, fields in sums.items()]
    return sorted(rows, key=lambda c: (-c.duration_ns, c.direction))
