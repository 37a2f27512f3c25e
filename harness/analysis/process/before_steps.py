"""What passed before the first step of a process's recording, in parts that add up: imports, model, copies of it, first
use, compiling, capture of graphs, meeting of ranks, data. Takes whatever was recorded; the rest is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from harness.analysis.process.by_name import matching
from harness.analysis.process.first_use import LONG_CALL_NS, NEVER, compiles
from harness.analysis.process.host_calls import HostCause, captures, loads_data
from harness.analysis.process.idle import COMMUNICATION, COMPUTE
from harness.analysis.process.intervals import EMPTY, Intervals, clip, difference, length, lengths_within, merge, union
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.process.ranges import range_label
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import BeforeSteps
from harness.traces.python_functions import python_function
from harness.traces.trace import I64, Activity, CopyKind, HostKind, HostMemory

# What ends it: the first marked step, the first period of a kernel, the model's first work, the recording.
STEP, PERIOD, WORK, END = "step", "period", "work", "end"
_PAUSE_NS, _PAUSE = 10_000_000, 0.01  # of the host between launches; and of the recording: a step has no such pause
_PRODUCTS = ("gemm", "attention")
_MEETS = re.compile(
    r"init_process_group|rendezvous|TCPStore|ncclCommInit|store_based_barrier|\bnew_group\b|init_distributed|"
    r"\bmpi_init|setup_distributed|init_device_mesh",
    re.IGNORECASE,
)
_NAMED: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("model", re.compile(
        r"from_pretrained|load_state_dict|load_checkpoint|torch/serialization\.py|safetensors|_init_weights|reset_parameters|"
        r"\b(?:build|create|init|initialise|initialize|load|make|construct|setup)_?(?:the_)?(?:model|network|weights|param)|"
        r"\bmodel[_ .:-]?(?:init|build|load|construct|creat|setup)|torch/nn/init\.py|"
        r"aten::(?:uniform_|normal_|trunc_normal_|kaiming|xavier|orthogonal)", re.IGNORECASE,
    )),
    ("imports", re.compile(r"importlib|_find_and_load|exec_module|import_module|^imports?\b", re.IGNORECASE)),
)  # fmt: skip


class _PartStretches(NamedTuple):
    """Stretches of one part, and the name of each."""

    part: str
    start_ns: I64
    end_ns: I64
    name: I64


def of_process(m: MeasuredProcess) -> list[BeforeSteps]:
    """One row; none of a process of which nothing was recorded."""
    recorded = recorded_extent(m)
    if recorded is None:
        return []
    until, ends_with = first_step(m)
    begin, end = recorded[0], min(max(until, recorded[0]), recorded[1])
    row: dict[str, Any] = {"rank": m.view.rank, "recorded_ns": recorded[1] - recorded[0], "ended_by": ends_with}
    return [BeforeSteps(**row | {"duration_ns": end - begin} | _parts(m, begin, end) | _copied(m, end))]


def recorded_extent(m: MeasuredProcess) -> tuple[int, int] | None:
    """From the first to the last moment of all that was recorded of the process, host and devices."""
    view = m.view
    spans = [each for each in (view.events, view.calls, view.ranges, view.host) if len(each)]
    if not spans:
        return None
    return min(int(s.start_ns.min()) for s in spans), max(int(s.end_ns.max()) for s in spans)


def first_step(m: MeasuredProcess) -> tuple[int, str]:
    """When the first step begins on the host, and what shows it: its mark; else the first period of a kernel, or the
    model's first work; without any kernel the recording's end."""
    steps = m.steps
    if len(steps.names):
        return int(steps.mark_start_ns[0]), PERIOD if by_periodicity(steps.source) else STEP
    work = _first_work(m)
    return (work, WORK) if work is not None else ((recorded_extent(m) or (0, 0))[1], END)


def _first_work(m: MeasuredProcess) -> int | None:
    """When the work that leads to the first product begins: its first launch, or the operator around it. Kernels that
    lie a long time before it fill parameters. Without products the first kernel that computes, or else communicates."""
    events = m.view.events
    computes = m.kinds.event_class == COMPUTE
    computes &= (events.activity == Activity.KERNEL) | (events.activity == Activity.CPU_OP)
    works = computes if computes.any() else m.kinds.event_class == COMMUNICATION
    rows = np.flatnonzero(works)
    if not len(rows):
        return None
    began = np.where(events.launch_ns[rows] >= 0, events.launch_ns[rows], events.start_ns[rows])
    product = np.array([kind in _PRODUCTS for kind, _ in m.kinds.labels] or [False])[m.kinds.code[rows]]
    moment = _since_a_pause(m, np.sort(began), int(began[product].min() if product.any() else began.min()))
    host = m.view.host
    around = (host.kind == HostKind.OPERATOR) & (host.start_ns <= moment) & (host.end_ns > moment)
    return int(host.start_ns[around].min()) if around.any() else moment


def _since_a_pause(m: MeasuredProcess, launched: I64, moment: int) -> int:
    """The first launch after the last pause of the host before a moment. First use is no pause: work is in it."""
    until = launched[launched <= moment]
    calls = m.view.calls
    long = np.flatnonzero((calls.end_ns - calls.start_ns >= LONG_CALL_NS) & (calls.start_ns < moment))
    long = long[~matching(calls.name[long], m.view.names, NEVER.search)]
    used = union(calls.start_ns[long], calls.end_ns[long])
    apart = np.diff(until) - lengths_within(used, until[:-1], until[1:])
    recorded = recorded_extent(m) or (0, 0)
    pauses = np.flatnonzero(apart >= max(_PAUSE_NS, _PAUSE * (recorded[1] - recorded[0])))
    return int(until[pauses[-1] + 1] if len(pauses) else until[0])


def _parts(m: MeasuredProcess, begin: int, end: int) -> dict[str, Any]:
    """Each moment belongs to the first part that has it; and the largest name of each part."""
    taken, spent, largest = EMPTY, dict[str, int](), dict[str, str]()
    for part, start_ns, end_ns, name in _stretches(m, end):
        own = difference(clip(union(start_ns, end_ns), begin, end), taken)
        taken = merge(taken, own)
        ns = length(own)
        if ns > spent.get(part, 0) and (text := _largest(m, own, start_ns, end_ns, name)):
            largest[part] = text
        spent[part] = spent.get(part, 0) + ns
    spent["unknown"] = end - begin - length(taken)
    return {f"{part}_ns": ns for part, ns in spent.items()} | {"largest": largest}


def _stretches(m: MeasuredProcess, end: int) -> Iterator[_PartStretches]:
    """The parts, the most certain first."""
    view, names = m.view, m.view.names
    calls, events = view.calls, view.events
    copied = np.flatnonzero((events.activity == Activity.MEMCPY) & (events.copy_kind == CopyKind.H2D))
    launch_ns = events.launch_ns[copied]
    copying = np.flatnonzero(np.isin(calls.start_ns, launch_ns[launch_ns >= 0]))
    yield _PartStretches(
        "copies",
        np.concatenate([events.start_ns[copied], calls.start_ns[copying]]),
        np.concatenate([events.end_ns[copied], calls.end_ns[copying]]),
        np.concatenate([events.name[copied], calls.name[copying]]).astype(np.int64),
    )
    first, last = captures(calls, names)
    yield _PartStretches("capture", calls.start_ns[first], calls.end_ns[last], calls.name[first].astype(np.int64))
    spans = _NamedSpans.of(m, end)
    yield spans.named("compile", compiles)
    yield spans.named("meeting", _MEETS.search)
    long = (calls.end_ns - calls.start_ns >= LONG_CALL_NS) & ~matching(calls.name, names, NEVER.search)
    yield _PartStretches("first_use", calls.start_ns[long], calls.end_ns[long], calls.name[long].astype(np.int64))
    yield spans.named("data", loads_data)
    for part, pattern in _NAMED:
        yield spans.named(part, pattern.search)
    yield _made_ready(m)
    work = events.activity != Activity.CPU_COLLECTIVE
    yield _PartStretches("device", events.start_ns[work], events.end_ns[work], events.name[work].astype(np.int64))


def _made_ready(m: MeasuredProcess) -> _PartStretches:
    """The idle time of the devices in which kernels were made ready, each with the kernel that ended it."""
    events, parts = m.view.events, [(EMPTY.start, EMPTY.end, EMPTY.start)]
    for device, rows in m.rows.items():
        ready = m.idle[device].of_cause(HostCause.FIRST_USE)
        after = rows.start + np.searchsorted(events.start_ns[rows], ready.end - 1)
        parts.append((ready.start, ready.end, events.name[np.minimum(after, rows.stop - 1)].astype(np.int64)))
    return _PartStretches("first_use", *(np.concatenate(column) for column in zip(*parts, strict=True)))


class _NamedSpans(NamedTuple):
    """What has a name on the host: ranges, spans of the threads that work, and on a CPU the operators."""

    names: list[str]
    name: I64
    start_ns: I64
    end_ns: I64

    @staticmethod
    def of(m: MeasuredProcess, end: int) -> _NamedSpans:
        view = m.view
        events = view.events
        operators = np.flatnonzero((events.activity == Activity.CPU_OP) & (events.start_ns < end))
        ranges, host = np.flatnonzero(view.ranges.start_ns < end), np.flatnonzero(view.host.start_ns < end)
        parts = (view.ranges, ranges), (view.host, host), (events, operators)
        columns = (
            np.concatenate([getattr(of, field)[rows] for of, rows in parts]) for field in ("name", "start_ns", "end_ns")
        )
        return _NamedSpans(view.names, *(each.astype(np.int64) for each in columns))

    def named(self, part: str, wanted: Any) -> _PartStretches:
        rows = np.flatnonzero(matching(self.name.astype(np.int32), self.names, wanted))
        return _PartStretches(part, self.start_ns[rows], self.end_ns[rows], self.name[rows])


def _largest(m: MeasuredProcess, intervals: Intervals, start_ns: I64, end_ns: I64, name: I64) -> str:
    """The name with most of a part's time."""
    inside = lengths_within(intervals, start_ns, np.maximum(end_ns, start_ns))
    most = int(np.argmax(np.bincount(name, weights=inside)))
    text = m.view.names[most]
    return python_function(text).function if ".py(" in text else range_label(text)


def _copied(m: MeasuredProcess, end: int) -> dict[str, Any]:
    """Bytes from the host to devices that were copied before the first step, and how long the copies took."""
    events = m.view.events
    rows = (events.activity == Activity.MEMCPY) & (events.copy_kind == CopyKind.H2D) & (events.start_ns < end)
    size = np.maximum(events.bytes[rows], 0)
    pageable = events.host_memory[rows] == HostMemory.PAGEABLE
    took = union(events.start_ns[rows], events.end_ns[rows])
    return {"copied_bytes": int(size.sum()), "pageable_bytes": int(size[pageable].sum()), "copying_ns": length(took)}
