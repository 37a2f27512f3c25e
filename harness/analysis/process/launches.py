"""How the host feeds the device: kernel sizes, launch delays, API calls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.prepared import MeasuredProcess, host_window
from harness.analysis.summary import ApiTime, Launches
from harness.traces.trace import Activity, Calls

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
        median_kernel_ns=round(float(np.median(durations))),
        short_kernel_fraction=float((durations < SHORT_KERNEL_NS).mean()),
        with_known_launch=len(delays),
        median_delay_ns=round(float(np.median(delays))) if len(delays) else None,
        p90_delay_ns=round(float(np.quantile(delays, 0.9))) if len(delays) else None,
        calls=_api_times(view.calls, view.names, host_window(measured)),
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
