"""Whether the recording is good enough for the numbers: problems, and withheld numbers with their reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import numpy as np
from msgspec.structs import replace

from harness.analysis.process.by_name import matching
from harness.analysis.process.idle import COMMUNICATION
from harness.analysis.process.part import Compressible, RankPart, Tables, tables_of
from harness.analysis.process.prepared import MeasuredProcess, inside
from harness.analysis.process.recording import OF_COMMUNICATION, kinds_of
from harness.analysis.process.steps import are_lost, by_periodicity
from harness.analysis.summary import Device, Problem, RecordingVerdict, problem_texts
from harness.common.display.format import duration
from harness.traces.trace import Activity

AFTER_WINDOW_SHARE = 0.05
KNOWN_LAUNCH_SHARE = 0.9
FEWEST_COLLECTIVES = 3
GRAPH_SHARE = 0.05  # of kernel time in whole graphs, from which overlap is not known
WHOLE_GRAPH = "CUDA graph "
_MOST_OF_WINDOW = 0.25  # that the first or last collective takes, if another rank's profiler starts or stops beside it
_OUTSTANDING = 20.0  # times as long as every other collective


def judge_part(part: RankPart, m: MeasuredProcess) -> RankPart:
    """The part with the problems about its own recording, and without the numbers for which it is not good enough."""
    graphs, share = _whole_graphs(m)
    kinds = kinds_of(m)
    problems = [
        *(Problem.doubt(kind.what, f"{_who(part)}: {kind.evidence}") for kind in kinds),
        *(_nothing(part, m) if not kinds else ()),
        *_steps(part),
        *_periodicity(part, m),
        *_tool(part, m),
        *_launches(m),
        *_tail(part),
        *_profiler_of_another(part, m),
        *_graphs(part, graphs, share),
    ]
    devices, phases, withheld = part.devices, part.phases, list[tuple[str, str]]()
    if reason := _holes(part, m) or _unordered_rest(m):
        withheld += [(field, reason) for field in ("idle_ns", "busy_fraction")]
    if share > GRAPH_SHARE:
        reason = (
            f"CUDA graphs were recorded whole ({share:.0%} of kernel time), so their communication is not known; "
            "kinds of work and collectives are those outside of CUDA graphs"
        )
        withheld += [(field, reason) for field in OF_COMMUNICATION]
    for kind in kinds:
        withheld += [(field, kind.what) for field in kind.withheld]
    fields = {field for field, _ in withheld}
    if "idle_ns" in fields:
        devices = [_without_idle(d) for d in devices]
    elif "idle_causes" in fields:
        devices = [_without_causes(d) for d in devices]
    if "communication_ns" in fields:
        devices = [_without_communication(d) for d in devices]
        phases = {name: (count, ns, None, None) for name, (count, ns, _, _) in phases.items()}
    tables = part.tables
    if "communication_ns" in fields:
        kernels, ranges = tables_of(part)
        tables = Compressible(Tables([replace(kernel, overlapped_ns=-1) for kernel in kernels], ranges))
    rows = part.rows.model_copy(update={"host_activities": []} if fields & {"idle_ns", "idle_causes"} else {})
    judged = {"rows": rows, "problems": problems, "devices": devices, "phases": phases, "tables": tables}
    return part.model_copy(update=judged | {"withheld": withheld})


def _unordered_rest(m: MeasuredProcess) -> str:
    """Why a file that was cut off does not show all work of its window; empty: it does."""
    until = m.view.trace.complete_until_ns
    if until is None or not bool((m.view.events.start_ns[inside(m)] > until).any()):
        return ""
    return "the file was cut off and is not in the order of time: events may be missing anywhere in the window"


def _holes(part: RankPart, m: MeasuredProcess) -> str:
    if part.steps.empty <= part.steps.found / 2 and not m.steps.empty_between:
        return ""
    return (
        f"{part.steps.empty} of {part.steps.found} steps have no work on any device: the recording has holes, "
        "so a time without work may not be idle time"
    )


def _whole_graphs(m: MeasuredProcess) -> tuple[int, float]:
    """Launches of CUDA graphs that were recorded as one event each, and their share of the kernels' time."""
    events = m.view.events
    kernels = events.activity == Activity.KERNEL
    graphs = kernels & matching(events.name, m.view.names, lambda name: name.startswith(WHOLE_GRAPH))
    duration = events.end_ns - events.start_ns
    return int(graphs.sum()), float(duration[graphs].sum() / max(int(duration[kernels].sum()), 1))


def _graphs(part: RankPart, graphs: int, share: float) -> Iterator[Problem]:
    if graphs:
        seen = f"{graphs} graphs, {share:.0%} of kernel time (record with --cuda-graph-trace=node)"
        yield Problem.doubt(problem_texts.WHOLE_GRAPHS, f"{_who(part)}: {seen}")


def _without_communication(device: Device) -> Device:
    *of_step, fraction = dict.fromkeys(OF_COMMUNICATION)
    nothing: dict[str, object] = dict.fromkeys(of_step)
    steps = [step.model_copy(update=nothing) for step in device.steps]
    return device.model_copy(update={**nothing, fraction: None, "steps": steps})


def _without_idle(device: Device) -> Device:
    steps = [step.model_copy(update={"idle_ns": None}) for step in device.steps]
    unknown = {"idle_ns": None, "busy_fraction": None, "steps": steps}
    return _without_causes(device).model_copy(update=unknown)


def _without_causes(device: Device) -> Device:
    return device.model_copy(update={"idle_causes": [], "longest_gaps": []})


def _nothing(part: RankPart, m: MeasuredProcess) -> list[Problem]:
    """A recording without any work is unusable; but without a GPU nsys still records how long the ranges took."""
    if part.events:
        return []
    ranges = len(m.view.ranges)
    if ranges and part.source.tool == "nsys" and not part.source.device_names:
        evidence = f"{_who(part)}: {ranges} ranges and no kernel: their times are known, the work inside them is not"
        return [Problem.doubt(problem_texts.NO_GPU, evidence)]
    why = "".join(f": {note}" for note in part.source.notes[-1:])
    if part.source.tool == "nsys" and not ranges:
        why = " and no range: nsys lost the recording, or nothing ran while it recorded; record it again"
    evidence = f"{part.source.path}: 0 events{why}"
    return [Problem(severity=RecordingVerdict.UNUSABLE, what=problem_texts.NO_WORK, evidence=evidence)]


def _steps(part: RankPart) -> Iterator[Problem]:
    steps = part.steps
    if steps.empty:
        seen = f"{steps.empty} of {steps.found} steps have no work on any device"
        yield Problem.doubt(problem_texts.EMPTY_STEPS, f"{_who(part)}: {seen}")
    if steps.found and not steps.durations_ns:
        yield Problem.doubt(problem_texts.NO_STEP, f"{_who(part)}: {steps.found} found, none complete with work")


def _periodicity(part: RankPart, m: MeasuredProcess) -> list[Problem]:
    """A period is perhaps no step, so that every number is of the window."""
    if not by_periodicity(m.steps.source):
        return []
    evidence = f"{_who(part)}: {len(m.steps.names)} periods; {m.steps.source}"
    return [Problem.remark(problem_texts.UNMARKED_STEPS, evidence)]


def _tool(part: RankPart, m: MeasuredProcess) -> Iterator[Problem]:
    if offset := m.view.trace.device_clock_ns:
        yield Problem.remark(problem_texts.CLOCK_MOVED, f"{_who(part)}: by {duration(abs(offset))}")
    for note in part.source.notes:
        yield Problem.doubt(problem_texts.READ_IN_PART, f"{_who(part)}: {note}")
    if part.dropped_events:
        yield Problem.doubt(problem_texts.EVENTS_DROPPED, f"{_who(part)}: {part.dropped_events} dropped")


def _launches(m: MeasuredProcess) -> Iterator[Problem]:
    """Idle causes and ranges need the call that launched a kernel."""
    events = m.view.events
    kernels = (events.activity == Activity.KERNEL) & inside(m)
    count = int(np.count_nonzero(kernels))
    known = int(np.count_nonzero(kernels & (events.launch_ns >= 0)))
    if are_lost(m.launches):
        lost, launches, steps = int(m.launches.lost.sum()), len(m.launches.lost), m.steps
        evidence = f"{PurePath(m.view.trace.identity.path).name}: {lost} of {launches} launches"
        if steps.left_out:
            evidence += f"; {int(steps.counted.sum())} of {len(steps.names)} steps count"
        yield Problem.doubt(problem_texts.STEPS_LOST if steps.left_out else problem_texts.WORK_LOST, evidence)
    if known < KNOWN_LAUNCH_SHARE * count:
        evidence = f"{PurePath(m.view.trace.identity.path).name}: {known} of {count} kernels have a known launch"
        yield Problem.doubt(problem_texts.LAUNCHES_MISSING, evidence)


def _tail(part: RankPart) -> Iterator[Problem]:
    if by_periodicity(part.steps.source):
        return  # no mark ends them
    for d in part.devices:
        if d.work_after_window_ns > AFTER_WINDOW_SHARE * d.window_ns:
            seen = f"device {d.device}: {d.work_after_window_ns / 1e6:.2f} ms after the window"
            yield Problem.doubt(problem_texts.WORK_AFTER_STEPS, f"{_who(part)}, {seen}")


def _profiler_of_another(part: RankPart, m: MeasuredProcess) -> Iterator[Problem]:
    """The first or last collective of a window is very long: the other ranks, which would show why, may be missing."""
    rows = np.flatnonzero((m.kinds.event_class == COMMUNICATION) & inside(m))
    rows = rows[np.argsort(m.view.events.start_ns[rows], kind="stable")]
    if len(rows) < FEWEST_COLLECTIVES:
        return
    took = (m.view.events.end_ns - m.view.events.start_ns)[rows]
    longest, others = int(np.argmax(took)), int(np.partition(took, -2)[-2])
    window_ns = part.window_end_ns - part.window_start_ns
    if longest in (0, len(rows) - 1) and took[longest] > max(_MOST_OF_WINDOW * window_ns, _OUTSTANDING * others):
        which = "first" if longest == 0 else "last"
        seen = f"the {which} collective takes {duration(int(took[longest]))}, the others at most {duration(others)}"
        yield Problem.doubt(problem_texts.PROFILER_WAITS, f"{_who(part)}: {seen}; steps and shares contain it")


def _who(part: RankPart) -> str:
    name = PurePath(part.source.path).name
    return name if part.source.rank is None else f"rank {part.source.rank} ({name})"
