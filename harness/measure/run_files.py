"""The records of the training scripts and the monitor, as parts of the summary. Reads no traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from harness.analysis.network import node_network
from harness.analysis.process.phases import TIMED
from harness.analysis.process.steps import leading_warmup
from harness.analysis.summary import CodeLocation, MonitorDevice, NodeNetwork, Problem, RankTraining, problem_texts
from harness.analysis.summary.base import why_invalid
from harness.common.display.printable import printable_value
from harness.common.run_folder.metrics_lines import START_FIELDS, STEP_COUNTS
from harness.common.run_folder.run_files import METRICS
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system.bounded_read import BoundedReadError, parse_json
from harness.measure.machine import (
    Ends,
    judge_devices,
    judge_machines,
    judge_monitors,
    monitored_devices,
    never_started,
    traffic_of_monitor,
)
from harness.measure.memory_growth import MemorySeries
from harness.measure.step_times import RankStepTimes
from harness.monitor.network import NETWORK_FILE, read_network
from harness.monitor.samples import META_FILE, SAMPLES_FILE, NodeSamples, read
from harness.monitor.source import MonitorError

_UNPROFILED = ("skip", "wait", "after")  # the profiler already works in "warmup"
_PHASES = ("active", "after")  # what counts: the profiled steps, else those after them, else every step
_MOST = 1 << 63  # neither NaN nor infinity is less
_MOST_RANKS = 1 << 24
_TIMED = ("step", *TIMED)
_FROM_START = sorted(
    {*START_FIELDS, "versions"} & {*RankTraining.__struct_fields__} - {"rank"}
)  # a run from before has versions


def read_training(
    files: Iterable[Path], times: RankStepTimes | None = None, memory: MemorySeries | None = None
) -> tuple[list[RankTraining], list[Problem]]:
    """One entry per metrics/rank<R>.jsonl, by rank. Lines that are cut off or damaged are skipped and reported.

    times: is told the times of each rank's steps; memory: how much each rank used after them.
    """
    ranks: list[RankTraining] = []
    problems: list[Problem] = []
    endless: list[str] = []
    for path in files:
        try:
            events, broken = read_events(path)
        except UnreadFileError as error:
            what = problem_texts.METRICS_UNREADABLE
            problems.append(Problem.doubt(what, f"{path.name}: {error.reason}"))
            continue
        if broken:
            problems.append(Problem.doubt(problem_texts.METRICS_LINES, f"{path.name}: {broken}"))
        if not any(event.get("event") == "end" for event in events):
            endless.append(path.name)
        start = next((e for e in events if e.get("event") == "start"), None)
        if start is None:
            continue
        try:
            ranks.append(_training(start, events))
            if times is not None:
                times.add(ranks[-1].rank, events)
            if memory is not None:
                memory.add(ranks[-1].rank, start, events)
        except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
            why = f"{path.name}: {why_invalid(error)}"
            problems.append(Problem.doubt(problem_texts.METRICS_UNREADABLE, why))
    if endless:
        more = f" and {len(endless) - 1} more" if len(endless) > 1 else ""
        why = f"{endless[0]}{more}: the training was killed, is still running, or the file is cut"
        problems.append(Problem.doubt(problem_texts.METRICS_CUT, why))
    return sorted(ranks, key=lambda t: t.rank), problems


def read_events(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The events of one metrics file, and the number of broken lines: not JSON, or text instead of a number.

    Raises UnreadFileError: it is missing, no regular file or may not be read, or has a line without end.
    """
    found = [_event(line) for line in METRICS.lines(path)]
    events = [event for event in found if event is not None]
    return events, len(found) - len(events)


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = parse_json(line)
    except BoundedReadError:
        return None
    if not isinstance(event, dict) or not all(_is_number(event.get(name)) for name in STEP_COUNTS):
        return None
    return event if line.isprintable() and "\\" not in line else {**printable_value(event)}


def _is_number(value: object) -> bool:
    """True also for a value that was not recorded. Nothing that is counted is less than nothing."""
    return value is None or (isinstance(value, (int, float)) and 0 <= value < _MOST)


def _refuse_odd(start: dict[str, Any]) -> None:
    """Raises ValueError: a number of the first line is none, or larger than any computer."""
    for name in (*_FROM_START, "rank"):
        value = start.get(name)
        most = _MOST_RANKS if name in ("rank", "world_size") else _MOST
        if isinstance(value, (int, float)) and not abs(value) < most:
            raise ValueError(f"{name} is {value:.3g}" if isinstance(value, float) else f"{name} is too large")


def _training(start: dict[str, Any], events: Sequence[dict[str, Any]]) -> RankTraining:
    _refuse_odd(start)
    steps = [e for e in events if e.get("event") == "step"]
    end: dict[str, Any] = next((e for e in reversed(events) if e.get("event") == "end"), {})
    observed: dict[str, Any] = next((e for e in reversed(events) if e.get("event") == "observed"), {})
    phase = next((p for p in _PHASES if any(s.get("phase") == p for s in steps)), None)
    counted = [s for s in steps if phase is None or s.get("phase") == phase]
    total_ns = sum(_values(counted, "step_ns"))
    tokens, samples = (sum(_values(counted, f)) if counted else None for f in ("tokens", "samples"))
    losses = [float(s["loss"]) for s in steps if isinstance(s.get("loss"), (int, float))]
    medians: dict[str, Any] = {f"median_{part}_ns": _rounded(median, _values(counted, f"{part}_ns")) for part in _TIMED}
    found = dict(
        rank=int(start.get("rank", 0)),
        **{field: start[field] for field in _FROM_START if start.get(field) is not None},
        status=end.get("status"),
        reason=end.get("reason"),
        steps_ended_by=observed.get("steps_ended_by"),
        notes=[note for e in events if e.get("event") in ("observed", "compiled") for note in e.get("notes") or []],
        steps_total=len(steps),
        steps_counted=len(counted),
        phase_counted=phase,
        step_durations_ns=_values(counted, "step_ns"),
        **medians,
        median_step_on_core_ns=_rounded(median, _on_core(counted)),
        **_unprofiled(steps),
        data_fraction=sum(_values(counted, "data_ns")) / total_ns if total_ns else None,
        tokens=tokens,
        samples=samples,
        tokens_per_s=tokens * 1e9 / total_ns if tokens and total_ns else None,
        samples_per_s=samples * 1e9 / total_ns if samples and total_ns else None,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        losses=losses,
        profiled_unix_ns=_span([s for s in steps if s.get("phase") == _PHASES[0]]),
        core_wait_ns=_rounded(fmean, _values(counted, "core_wait_ns")),
        collector_ns=_rounded(fmean, _values(counted, "collector_ns")),
        continued=sum(_values(counted, "continued")) if counted else None,
        # Without the step in which the profiler writes its trace.
        written_bytes=_rounded(fmean, sorted(_values(counted, "written_bytes"))[:-1]),
        cores=next((str(s["cores"]) for s in reversed(counted) if s.get("cores")), None),
        **_peak_memory(steps),
        **_sampled_peak(events, steps),
    )
    return RankTraining.model_validate(found)


def _unprofiled(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The steps in which no profiler works, without the leading ones that are warm-up."""
    outside = [s for s in steps if s.get("phase") in _UNPROFILED and _values([s], "step_ns")]
    kept = outside[leading_warmup(np.array(_values(outside, "step_ns"), np.int64)) :]
    return {
        "unprofiled_steps": len(kept),
        "median_unprofiled_step_ns": _rounded(median, _values(kept, "step_ns")),
        "median_unprofiled_step_on_core_ns": _rounded(median, _on_core(kept)),
    }


def _peak_memory(steps: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Of the training, and what the profiler adds: by how much it rises until the step after the last one with the
    profiler, before which that writes its trace. Each line has the peak so far."""
    profiled = [i for i, s in enumerate(steps) if s.get("phase") not in _UNPROFILED]
    parts = (steps[: profiled[0]], steps[: profiled[-1] + 2], steps) if profiled else ((), (), steps)
    alone, recorded, whole = (max(_values(part, "peak_memory_bytes"), default=None) for part in parts)
    if alone is None or recorded is None or whole is None:
        return {"peak_memory_bytes": whole}
    return {"peak_memory_bytes": whole - (recorded - alone), "profiler_memory_bytes": recorded - alone}


def _sampled_peak(events: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The highest that the sampler saw, with the user's line, and what is usual after a step."""
    seen = [event for event in events if event.get("event") == "peak" and _values([event], "bytes")]
    if not seen:
        return {}
    last = max(seen, key=lambda event: event["bytes"])
    place: CodeLocation | None = None
    match last.get("where"):
        case [str(file), int(line), str(function)]:
            place = CodeLocation(file=file, line=line, function=function)
    after = _values(steps, "device_memory_bytes") or _values(steps, "host_memory_bytes")
    return {
        "sampled_peak_bytes": int(last["bytes"]),
        "sampled_peak_line": place,
        "typical_memory_bytes": _rounded(median, after),
    }


def _on_core(steps: Sequence[dict[str, Any]]) -> list[int]:
    """How long the steps take without their waits for a core, as far as these are known."""
    return [max(ns - sum(_values([step], "core_wait_ns")), 0) for step in steps for ns in _values([step], "step_ns")]


def _values(steps: Iterable[dict[str, Any]], field: str) -> list[int]:
    return [int(s[field]) for s in steps if isinstance(s.get(field), (int, float))]


def _rounded(average: Callable[[list[int]], float], values: list[int]) -> int | None:
    return round(average(values)) if values else None


def _span(steps: Sequence[dict[str, Any]]) -> tuple[int, int] | None:
    """From the first step's start to the last step's end, unix nanoseconds; None where they were not recorded."""
    timed = [s for s in steps if s.get("unix_ns") and s.get("step_ns")]
    return (int(timed[0]["unix_ns"]), int(timed[-1]["unix_ns"] + timed[-1]["step_ns"])) if timed else None


def read_traffic(folders: Sequence[Path]) -> tuple[list[NodeNetwork], list[Problem]]:
    """The network of each node that the monitor watched."""
    nodes: list[NodeNetwork] = []
    problems: list[Problem] = []
    for folder in (each for each in folders if (each / NETWORK_FILE).exists()):  # an older monitor wrote none
        try:
            host, nics = read_network(folder)
            found = node_network(host, "monitor", traffic_of_monitor(nics))
            nodes += [found] if found else []
        except MonitorError as error:
            problems.append(Problem.doubt(problem_texts.SAMPLES_UNREADABLE, str(error)))
    return nodes, problems


def read_monitor(
    folders: Sequence[Path], training: Sequence[RankTraining] = (), ends: Ends | None = None
) -> tuple[list[MonitorDevice], list[Problem]]:
    """One entry per device that the monitor watched, and the doubts about the machines that `training` ran on.

    ends: when the job ended on each node, by the name of its monitor's folder.
    """
    recordings: list[NodeSamples] = []
    problems: list[Problem] = []
    ends = ends or {}
    empty = [each for each in folders if not any((each / name).exists() for name in (SAMPLES_FILE, META_FILE))]
    for folder in folders:
        try:
            recordings.append(read(folder))
        except MonitorError as error:
            if folder not in empty or folder.name not in ends:
                problems.append(Problem.doubt(problem_texts.SAMPLES_UNREADABLE, str(error)))
    problems += never_started(empty, recordings, ends)
    problems += judge_monitors(recordings, training, ends)
    problems += judge_devices(recordings, training)
    devices = [device for recording in recordings for device in monitored_devices(recording, ends)]
    return devices, [*problems, *judge_machines(recordings, training)]
