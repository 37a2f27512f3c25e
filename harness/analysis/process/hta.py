"""The temporal breakdown of HolisticTraceAnalysis (HTA) 0.5.0, with its trimming and rounding, to compare with HTA.

HTA rounds a trace with fractional microseconds inwards (start up, end down), drops everything that was launched after
the last ProfilerStep began, knows kernels by a few name prefixes, and calls the rest of the busy time non-compute.
Source: facebookresearch/HolisticTraceAnalysis, breakdown_analysis.py and trace_filter.py."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import used
from harness.analysis.process.intervals import intersection, length, union
from harness.analysis.process.view import View
from harness.analysis.summary import HtaSplit
from harness.traces.trace import Activity, Events, RangeKind

_COMMUNICATION = re.compile(r"^nccl|^hip|^hccl|.*ncclKernel")
_MEMORY = re.compile(r"^(hip)?Memcpy|^(hip)?Memset|^dma")
_NOT_COMPUTE = re.compile(
    r"^nccl|.*Memcpy|.*Memset|.*dma|^.*Sync|^Stream Wait Event|cuda.*LaunchKernel|^runFunction|^hip|^job_exe"
    r"|^packet|^pe_exe|^cpum_exe_subgraph|^hccl|^collective_subgraph_execution"
)
_COMPUTE_CODE, _COMMUNICATION_CODE, _OTHER_CODE = 2, 0, 1


def hta_split(view: View) -> HtaSplit | None:
    """HTA's numbers for one rank's Kineto trace; None for a trace that HTA does not measure."""
    if view.trace.identity.source != "kineto" or view.on_cpu or len(view.events) == 0:
        return None
    kept = _trimmed(view)
    events = view.events
    start, end = events.start_ns[kept], events.end_ns[kept]
    if len(start) == 0:
        return None
    if (start % 1000).any():
        start, end = -(-start // 1000) * 1000, end // 1000 * 1000
    code = _codes(events, view.names)[kept]
    compute = union(start[code == _COMPUTE_CODE], end[code == _COMPUTE_CODE])
    communication = union(start[code == _COMMUNICATION_CODE], end[code == _COMMUNICATION_CODE])
    total = int(end.max() - start.min())
    idle = total - length(union(start, end))
    overlap, communicating = length(intersection(compute, communication)), length(communication)
    return HtaSplit(
        source=view.trace.identity.path,
        total_us=total / 1000,
        idle_us=idle / 1000,
        compute_us=length(compute) / 1000,
        noncompute_us=(total - idle - length(compute)) / 1000,
        overlap_pct=round(100 * overlap / communicating, 2) if communicating else None,
    )


def _trimmed(view: View) -> NDArray[np.bool_]:
    """With several ProfilerSteps, only the events that were launched before the last step started."""
    steps = view.ranges.kind == RangeKind.STEP
    if len(np.unique(view.ranges.name[steps])) < 2:
        return np.ones(len(view.events), np.bool_)
    launched = view.events.launch_ns
    kept: NDArray[np.bool_] = (launched >= 0) & (launched < view.ranges.start_ns[steps].max())
    return kept


def _codes(events: Events, names: list[str]) -> NDArray[np.uint8]:
    by_name = np.full(len(names), _OTHER_CODE, np.uint8)
    for i in used(events.name):
        by_name[i] = _code(names[i])
    code = by_name[events.name]
    code[(events.activity == Activity.MEMCPY) | (events.activity == Activity.MEMSET)] = _OTHER_CODE
    return code


def _code(name: str) -> int:
    if _COMMUNICATION.match(name):
        return _COMMUNICATION_CODE
    return _OTHER_CODE if _MEMORY.match(name) or _NOT_COMPUTE.match(name) else _COMPUTE_CODE
