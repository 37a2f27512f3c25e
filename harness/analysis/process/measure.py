"""A trace to the parts of its processes: splits, kernels, ranges, phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.analysis.network import node_network, traffic_of_samples
from harness.analysis.process import collective_rows, copies, device, pipeline, quality, ranges
from harness.analysis.process.kernels import kernel_sums
from harness.analysis.process.kinds import Rules, classify
from harness.analysis.process.part import Compressible, RankPart, StepsPart, Tables
from harness.analysis.process.phases import PhaseSums, phase_of_moments, phase_sums, phases
from harness.analysis.process.prepared import MeasuredProcess, extent_of, inside, prepare_process, range_of_events
from harness.analysis.process.rows import rows_of_process
from harness.analysis.process.steps import NO_STEPS, ProcessSteps, step_numbers
from harness.analysis.process.view import ProcessView, views
from harness.analysis.summary import Device, NodeNetwork, TraceSource, Window
from harness.traces.trace import Trace


def measured_processes(
    trace: Trace, window: Window, rules: Rules, least_warmup: int = 0
) -> Iterator[tuple[RankPart, MeasuredProcess]]:
    """The part of each process of the trace and the columns under it, one process at a time. What cannot be measured is
    a problem of the part, not an error. least_warmup: as in `find_steps`."""
    network = _network(trace)
    for view in views(trace):
        measured = prepare_process(view, window, rules, least_warmup)
        part = _part(measured, window).model_copy(update={"network": network})
        network = None  # once of each file
        yield part, measured


def _network(trace: Trace) -> NodeNetwork | None:
    """The node's network, where the file has samples of it."""
    if not trace.nics:
        return None
    return node_network(trace.identity.host or "unknown host", "nsys", traffic_of_samples(trace.nics))


def unmeasured(view: ProcessView, rules: Rules) -> RankPart:
    """A part with only the collectives of the process: enough to match them, and so to compare clocks."""
    rows = collective_rows.rows(view, classify(view.events, view.names, rules))
    return RankPart(
        source=_source(view),
        window=Window.GPU,
        steps=_steps_part(NO_STEPS, 0, ()),
        window_start_ns=0,
        window_end_ns=0,
        epoch_ns=view.epoch_ns,
        events=len(view.events),
        collectives=Compressible(rows),
    )


def _part(measured: MeasuredProcess, window: Window) -> RankPart:
    view = measured.view
    start, end = extent_of(measured.windows) if measured.windows else (0, 0)
    chosen = inside(measured)
    devices = [device.measure_device(measured, d) for d in measured.rows]
    part = RankPart(
        source=_source(view),
        window=window,
        steps=_steps_part(measured.steps, start, devices),
        window_start_ns=start,
        window_end_ns=end,
        epoch_ns=view.epoch_ns,
        events=len(view.events),
        devices=devices,
        rows=rows_of_process(measured, chosen),
        copies=copies.copy_table(measured, chosen),
        stage=next((pipeline.stage_of(measured, d) for d in measured.rows), None),  # the first device is the worker
        dropped_events=view.trace.dropped_events,
        backend=view.trace.identity.backend,
        phases=_phases(measured, chosen),
        tables=Compressible(Tables(kernel_sums(measured, chosen), _ranges(measured, chosen))),
        collectives=Compressible(measured.collectives),
    )
    return quality.judge_part(part, measured)


def _source(view: ProcessView) -> TraceSource:
    identity = view.trace.identity
    return TraceSource(
        path=identity.path,
        tool=identity.source,
        tool_version=identity.tool_version,
        rank=view.rank,
        world_size=identity.world_size,
        host=identity.host,
        pid=view.pid,
        device_names=identity.device_names,
        notes=view.trace.notes,
    )


def _steps_part(steps: ProcessSteps, window_start_ns: int, devices: Sequence[Device]) -> StepsPart:
    marked = steps.marked_window if steps.on_device else None
    return StepsPart(
        source=steps.source,
        found=len(steps.names),
        warmup=steps.warmup,
        cut_off=steps.cut_off,
        empty=steps.empty,
        left_out=steps.left_out,
        on_device=steps.on_device,
        durations_ns=steps.durations_ns.tolist(),
        between_ns=steps.between_ns.tolist(),
        numbers=step_numbers(steps),
        first_mark_ns=marked[0] - window_start_ns if marked else 0,
        own_ns=_own_work(devices),
    )


def _own_work(devices: Sequence[Device]) -> list[int]:
    """Of each step what is not communication alone, on the device with most of it; empty where that is not known."""
    known = [
        [x.window_ns - x.exposed_communication_ns for x in d.steps if x.exposed_communication_ns is not None]
        for d in devices
    ]
    count = max((len(d.steps) for d in devices), default=0)
    return [max(of_step) for of_step in zip(*(each for each in known if len(each) == count), strict=True)]


def _phases(m: MeasuredProcess, chosen: NDArray[np.bool_]) -> PhaseSums:
    events = m.view.events
    began = np.where(events.launch_ns >= 0, events.launch_ns, events.start_ns)
    of_ranges = phases(m.view.ranges, m.view.names, m.nesting)
    phase = phase_of_moments(range_of_events(m), of_ranges, began, m.steps.between)
    return phase_sums(events, phase, m.kinds.event_class, chosen)


def _ranges(m: MeasuredProcess, chosen: NDArray[np.bool_]) -> ranges.RangeSums:
    view = m.view
    idle = [device.idle_of(m, d) for d in m.rows]
    event, rows = collective_rows.row_events(view, m.kinds), m.collectives
    start, end = extent_of(m.windows) if m.windows else (0, 0)
    inside_window = (rows.start_ns >= start) & (rows.start_ns < end)
    begun = np.where(inside_window, collective_rows.launchers(m.nesting, m.owner, event, rows.start_ns), -1)
    work = (view.events, m.owner, chosen)
    return ranges.project(view.ranges, view.names, m.nesting, work, idle, messages=(begun, rows.bytes))
