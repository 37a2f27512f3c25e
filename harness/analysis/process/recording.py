"""What kind of recording it is, by its structure: of a graph's capture, a sample, a part of the device's work, the
device alone, or with the first use of kernels in its window. Knows one process, and no file's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching
from harness.analysis.process.device import idle_of
from harness.analysis.process.first_use import loading_launches
from harness.analysis.process.host_calls import HostCause
from harness.analysis.process.idle import COMMUNICATION
from harness.analysis.process.intervals import EMPTY, Intervals, clip, difference, length, lengths_within, merge, union
from harness.analysis.process.prepared import MeasuredProcess, extent_of
from harness.analysis.summary import problem_texts
from harness.traces.trace import I64, Activity, CopyKind, HostMemory
from harness.traces.vocabulary import launches_work

CAPTURED_SHARE = 0.5  # of the window in captures: a training that captures once spends most of it elsewhere
CAPTURED_LEAST = 0.1  # of the window, where half of the launches are captured and no graph is launched again
UNMATCHED = 0.2  # of kernels without launch and of launches without kernel, in each third of the recording
MIXED = 0.1  # of neighbours, of which one is broken and one is not: 2 p (1 - p) where a share p is, at random
FEWEST = 200  # calls, or launches, of which a share says something
NUMBERED = 0.01  # of the calls that the profiler numbered; recordings that are whole have 0.05 to 1
APART = 30  # numbers from one call to the next, median; recordings that are whole have 1 to 17
LONG_NS = 1_000_000  # a launch, and the start of a kernel that nothing holds up, take microseconds
WAITED_SHARE = 0.1  # of the window in which launched work waits and nothing that was recorded runs
LOST_LEAST = 10  # launches without work: fewer are the ends of a recording
LOST_MANY = 0.1  # of the launches without work, from which nothing is told of the device's time
LAUNCHES_KNOWN = 0.1  # of at least ten kernels: with fewer, the host is not in the recording
FIRST_USE_SHARE = 0.03  # of the window: a smaller loss is not told
_OF_CPUS = re.compile(r"mkldnn|onednn|_cpu\b|^gloo:|^mpi:")  # operators that no program with a GPU runs
NO_FINDING = ("findings", "replay.what_ifs")
OF_COMMUNICATION = ("communication_ns", "exposed_communication_ns", "overlapped_communication_ns", "overlap_fraction")
_NO_IDLE = ("idle_ns", "busy_fraction", "idle_causes")


class RecordingProblem(NamedTuple):
    """What the recording is (a text of problem_texts), what was seen, and the fields that it cannot carry."""

    what: str
    evidence: str
    withheld: tuple[str, ...] = ()


def kinds_of(m: MeasuredProcess) -> list[RecordingProblem]:
    """The kind of recording, if it is no plain recording of running steps; whether its file was cut off; and the first
    use of kernels in it."""
    if m.view.on_cpu:
        is_host = not matching(m.view.events.name, m.view.names, _OF_CPUS.search).any()
        alone = _device_missing(m, EMPTY) if is_host else None
        return [*_cut_off(m), *([alone] if alone else [])]
    first = next((kind for rule in _RULES if (kind := rule(m, m.launches.captured)) is not None), None)
    used = None if first else _first_use(m, m.launches.captured)
    return [*_cut_off(m), *(kind for kind in (first, used) if kind is not None)]


def _cut_off(m: MeasuredProcess) -> list[RecordingProblem]:
    """The reader counts no step whose work may be missing (steps.py); quality.py withholds what holes make unknown."""
    if m.view.trace.complete_until_ns is None:
        return []
    found, counted = len(m.steps.names), int(m.steps.counted.sum())
    seen = f"{counted} of {_counted(found, 'step')} can be counted" if found else "no step was found in it"
    return [RecordingProblem(problem_texts.CUT_OFF, f"{seen}; {_counted(len(m.view.events), 'event')} of work")]


def _launches(m: MeasuredProcess) -> NDArray[np.intp]:
    """Calls that put work on a device."""
    return np.flatnonzero(matching(m.view.calls.name, m.view.names, launches_work))


def _window(m: MeasuredProcess) -> tuple[int, int]:
    """The devices' windows together; of a recording in which no device works, its calls."""
    calls = m.view.calls
    if m.windows:
        return extent_of(m.windows)
    return (int(calls.start_ns.min()), int(calls.end_ns.max())) if len(calls) else (0, 0)


def _device_missing(m: MeasuredProcess, _: Intervals) -> RecordingProblem | None:
    """Launches, or the names of devices, and nothing that a device did."""
    launches, named = len(_launches(m)), len(m.view.trace.identity.device_names)
    if (m.windows and not m.view.on_cpu) or not (launches or named):
        return None
    seen = f"{_counted(launches, 'call')} put work on a device" if launches else f"{_counted(named, 'device')} named"
    ranges = f", {_counted(len(m.view.ranges), 'range')} of the program" if len(m.view.ranges) else ""
    unused = "" if launches else "; CUDA_VISIBLE_DEVICES= hides devices from a program that uses none"
    seen += f"{ranges}, and no kernel, copy or set is in the file{unused}"
    return RecordingProblem(problem_texts.DEVICE_MISSING, seen, (*_NO_IDLE, *OF_COMMUNICATION, *NO_FINDING))


def _capture(m: MeasuredProcess, captured: Intervals) -> RecordingProblem | None:
    """Most of the window, or of its launches, lies inside of captures: kernels are written down there and do not run.

    A training that captures at its start launches what it captured, and more often than it captures."""
    start, end = _window(m)
    share = length(clip(captured, start, end)) / max(end - start, 1)
    if share < CAPTURED_LEAST:
        return None
    calls, launches = m.view.calls, _launches(m)
    written = int(lengths_within(captured, calls.start_ns[launches], calls.start_ns[launches] + 1).sum())
    replays = int(matching(calls.name, m.view.names, lambda name: "GraphLaunch" in name).sum())
    if share < CAPTURED_SHARE and (written < len(launches) / 2 or replays > len(captured.start)):
        return None
    count = _counted(len(captured.start), "capture")
    seen = f"{count}, {share:.0%} of the window, with {written} of {len(launches)} launches"
    return RecordingProblem(problem_texts.GRAPH_CAPTURE, seen, ("idle_causes", *NO_FINDING))


def _sample(m: MeasuredProcess, _: Intervals) -> RecordingProblem | None:
    """Events are missing at random: calls of which nearly all numbers are absent, or broken pairs both ways."""
    seen = _absent_numbers(m) or _broken_pairs(m)
    return RecordingProblem(problem_texts.SAMPLED, seen, (*_NO_IDLE, *OF_COMMUNICATION, *NO_FINDING)) if seen else None


def _absent_numbers(m: MeasuredProcess) -> str:
    """CUPTI numbers every call of the library. Calls that a profiler leaves out always (getters, queries in a loop) are
    many at some places; in a sample nearly every place lacks many."""
    numbers = m.view.calls.correlation
    numbers = numbers[numbers > 0]
    if len(numbers) < FEWEST:
        return ""
    whole = int(np.ptp(numbers)) + 1
    if len(numbers) > NUMBERED * whole or np.median(np.diff(np.unique(numbers))) < APART:
        return ""
    return f"{len(numbers)} of {whole} calls that the profiler numbered are in the file"


def _broken_pairs(m: MeasuredProcess) -> str:
    """Kernels without their launch and launches without their work, in each third of the recording: at the ends of a
    recording that was cut both occur, each at one end."""
    events, calls, launches = m.view.events, m.view.calls, _launches(m)
    work = events.activity <= Activity.MEMSET
    if min(int(work.sum()), len(launches)) < FEWEST:
        return ""
    alone = events.launch_ns[work] < 0
    if alone.mean() < UNMATCHED:
        return ""
    idle = ~np.isin(calls.correlation[launches], events.correlation[work])
    both = (events.start_ns[work], alone), (calls.start_ns[launches], idle)
    if any(_comes_in_stretches(*one) for one in both):
        return ""
    return f"{alone.mean():.0%} of kernels lack their launch, and {idle.mean():.0%} of launches their kernel"


def _comes_in_stretches(start_ns: I64, broken: NDArray[np.bool_]) -> bool:
    """Whether what is broken is not mixed with the rest: rare in a third of the time, or in few long stretches."""
    broken = broken[np.argsort(start_ns, kind="stable")]
    third = (np.sort(start_ns) - start_ns.min()) * 3 // (int(np.ptp(start_ns)) + 1)
    shares = [broken[third == i].mean() for i in range(3) if (third == i).any()]
    return bool(min(shares) < UNMATCHED or np.count_nonzero(np.diff(broken)) < MIXED * len(broken))


def _part(m: MeasuredProcess, _: Intervals) -> RecordingProblem | None:
    """Work that was launched waits, and nothing that was recorded runs: what it waits for is not in the recording.

    The launch is over, and the work is no collective, whose other ranks may be late."""
    found = [(length(waits), len(waits.start), m.windows[d]) for d in m.rows for waits in [_waits(m, d)]]
    waited_ns, count, (start, end) = max(found, default=(0, 0, (0, 1)))
    if not waited_ns or waited_ns < WAITED_SHARE * (end - start):
        return None
    stretches = _counted(count, "stretch", "stretches")
    seen = (
        f"{waited_ns / 1e6:.1f} ms of {(end - start) / 1e6:.1f} ms, in {stretches}, launched kernels wait and nothing "
        "that was recorded runs"
    )
    return RecordingProblem(problem_texts.WORK_MISSING, seen, (*_NO_IDLE, *OF_COMMUNICATION, *NO_FINDING))


def _lost(m: MeasuredProcess, _: Intervals) -> RecordingProblem | None:
    """So many launches without their work that the device's time is not known."""
    lost, launches = int(m.launches.lost.sum()), len(m.launches.lost)
    if m.steps.left_out or lost < max(LOST_MANY * launches, LOST_LEAST):
        return None
    seen = f"{lost} of {_counted(launches, 'launch', 'launches')} have no kernel, copy or set in the file"
    return RecordingProblem(problem_texts.WORK_MISSING, seen, (*_NO_IDLE, *OF_COMMUNICATION, *NO_FINDING))


def _waits(m: MeasuredProcess, device: int) -> Intervals:
    """Long stretches in which no device of the process works, and work waits whose launch is over: not for the copy
    from pageable memory that the host makes meanwhile, of which only the last part is recorded."""
    events, calls, rows = m.view.events, m.view.calls, m.rows[device]
    pageable = (events.copy_kind == CopyKind.H2D) & (events.host_memory == HostMemory.PAGEABLE)
    copying = np.flatnonzero(np.isin(calls.correlation, events.correlation[pageable]))
    others = [m.busy[d].any for d in m.rows if d != device]
    gaps = idle_of(m, device)
    long = gaps.end - gaps.start >= LONG_NS
    gaps = Intervals(gaps.start[long], gaps.end[long])
    after = rows.start + np.searchsorted(events.start_ns[rows], gaps.end, side="left")
    ended = after < rows.stop
    gaps, after = Intervals(gaps.start[ended], gaps.end[ended]), after[ended]
    launched = _ends_of_launches(calls.correlation, calls.end_ns, events.correlation[after])
    queued = (launched >= 0) & (m.kinds.event_class[after] != COMMUNICATION)
    start = np.maximum(gaps.start, launched)
    queued &= gaps.end - start >= LONG_NS
    waits = Intervals(start[queued], gaps.end[queued])
    return difference(waits, merge(union(calls.start_ns[copying], calls.end_ns[copying]), *others))


def _ends_of_launches(numbers: I64, end_ns: I64, wanted: I64) -> I64:
    """When the call with each wanted number returned; -1: it was not recorded."""
    rows = np.flatnonzero(np.isin(numbers, wanted) & (numbers >= 0))
    if not len(rows):
        return np.full(len(wanted), -1, np.int64)
    rows = rows[np.argsort(numbers[rows], kind="stable")]
    at = np.minimum(np.searchsorted(numbers[rows], wanted), len(rows) - 1)
    return np.where(numbers[rows][at] == wanted, end_ns[rows][at], -1)


def _device_only(m: MeasuredProcess, _: Intervals) -> RecordingProblem | None:
    """Nearly no call, and nothing else of the host."""
    events = m.view.events
    kernels = events.activity == Activity.KERNEL
    count, known = int(kernels.sum()), int((kernels & (events.launch_ns >= 0)).sum())
    least = LAUNCHES_KNOWN * count
    if known >= least or len(m.view.calls) >= least or len(m.view.host) or least < 1:
        return None
    seen = f"{count} kernels, {known} of them with a known launch"
    return RecordingProblem(problem_texts.DEVICE_ONLY, seen, ("findings.host", "replay.what_ifs"))


def _clocks_apart(m: MeasuredProcess, _: Intervals) -> RecordingProblem | None:
    """Work starts before its launch, and the difference is no constant that the reader could take out."""
    if m.view.trace.device_clock_ns is not None:
        return None
    events = m.view.events
    early = (events.launch_ns - events.start_ns)[events.launch_ns >= 0].max()
    seen = f"work starts up to {early / 1e6:.1f} ms before its launch"
    return RecordingProblem(problem_texts.CLOCKS_APART, seen, ("idle_causes", "findings.host", "replay.what_ifs"))


def _first_use(m: MeasuredProcess, captured: Intervals) -> RecordingProblem | None:
    """Idle time in which libraries, memory, kernels or graphs are made ready for the first time."""
    lost = [(int(m.idle[d].sums()[[HostCause.FIRST_USE, HostCause.CAPTURE]].sum()), m.windows[d]) for d in m.rows]
    lost_ns, (start, end) = max(lost, default=(0, (0, 1)))
    if not lost_ns or lost_ns < FIRST_USE_SHARE * (end - start):
        return None
    calls, first = m.view.calls, np.flatnonzero(loading_launches(m.view))
    within = int(((calls.start_ns[first] < end) & (calls.end_ns[first] > start)).sum())
    inner = clip(captured, start, end)
    counts = ((within, "kernel"), (len(inner.start), "CUDA graph"))
    causes = " and ".join(_counted(n, noun) for n, noun in counts if n) or "libraries or memory"
    seen = f"{lost_ns / 1e6:.1f} ms of {(end - start) / 1e6:.1f} ms, {causes}"
    return RecordingProblem(problem_texts.FIRST_USE, seen)


def _counted(count: int, singular: str, many: str | None = None) -> str:
    return f"{count} {singular if count == 1 else many or f'{singular}s'}"


_RULES: tuple[Callable[[MeasuredProcess, Intervals], RecordingProblem | None], ...] = (
    _capture,
    _device_missing,
    _sample,
    _lost,
    _part,
    _device_only,
    _clocks_apart,
)
