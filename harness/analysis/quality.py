"""Whether the recording can carry the numbers: findings first, and numbers withheld with their reason."""

from __future__ import annotations

from pathlib import PurePath

import numpy as np

from harness.analysis.measured import Measured
from harness.analysis.parts import RankPart
from harness.analysis.summary import Device, Finding, Verdict
from harness.traces.trace import Activity

AFTER_WINDOW_SHARE = 0.05
KNOWN_LAUNCH_SHARE = 0.9


def judge_part(part: RankPart, m: Measured) -> RankPart:
    """The part with what is wrong with its own recording; idle time is withheld where steps were not
    recorded."""
    findings = [*_nothing(part, m), *_steps(part), *_tool(part), *_launches(m), *_tail(part)]
    update: dict[str, object] = {"findings": findings}
    if part.steps.empty > part.steps.found / 2:
        reason = (
            f"{part.steps.empty} of {part.steps.found} steps have no work on any device: the recording has holes, "
            "so a quiet stretch need not be an idle device"
        )
        update |= {"devices": [_without_idle(d) for d in part.devices]}
        update |= {"withheld": [("idle_ns", reason), ("busy_fraction", reason)]}
    return part.model_copy(update=update)


def _without_idle(device: Device) -> Device:
    return device.model_copy(
        update={
            "idle_ns": None,
            "busy_fraction": None,
            "idle_causes": [],
            "longest_gaps": [],
            "steps": [step.model_copy(update={"idle_ns": None}) for step in device.steps],
        }
    )


def _doubt(what: str, evidence: str) -> Finding:
    return Finding(severity=Verdict.DOUBTFUL, what=what, evidence=evidence)


def _nothing(part: RankPart, m: Measured) -> list[Finding]:
    """What nsys records without a GPU still says how long the ranges took; anything else without work says nothing."""
    if part.events:
        return []
    ranges = len(m.view.ranges)
    if ranges and part.source.tool == "nsys" and not part.source.device_names:
        evidence = f"{_who(part)}: {ranges} ranges and no kernel: their times stand, what ran under them is not known"
        return [_doubt("recorded without a GPU", evidence)]
    what = "no work was recorded on any device"
    return [Finding(severity=Verdict.UNUSABLE, what=what, evidence=f"{part.source.path}: 0 events")]


def _steps(part: RankPart) -> list[Finding]:
    found: list[Finding] = []
    steps = part.steps
    if steps.empty:
        evidence = f"{_who(part)}: {steps.empty} of {steps.found} steps have no work on any device"
        found.append(_doubt("steps without any work", evidence))
    if steps.found and not steps.durations_ns:
        found.append(
            _doubt("no step can be counted", f"{_who(part)}: {steps.found} found, none complete with work")
        )
    return found


def _tool(part: RankPart) -> list[Finding]:
    found = [
        _doubt("the reader could not read everything", f"{_who(part)}: {note}") for note in part.source.notes
    ]
    if part.dropped_events:
        found.append(_doubt("the profiler dropped events", f"{_who(part)}: {part.dropped_events} dropped"))
    return found


def _launches(m: Measured) -> list[Finding]:
    """Idle causes, ranges and HTA's trimming all rest on knowing which call launched a kernel."""
    events = m.view.events
    kernels = events.activity == Activity.KERNEL
    count = int(np.count_nonzero(kernels))
    known = int(np.count_nonzero(kernels & (events.launch_ns >= 0)))
    if count == 0 or known >= KNOWN_LAUNCH_SHARE * count:
        return []
    evidence = f"{PurePath(m.view.trace.identity.path).name}: {known} of {count} kernels have a known launch"
    return [_doubt("idle causes and ranges are incomplete: launches are missing", evidence)]


def _tail(part: RankPart) -> list[Finding]:
    return [
        _doubt(
            "work of the steps runs on after their last mark",
            f"{_who(part)}, device {d.device}: {d.work_after_window_ns / 1e6:.2f} ms after the window",
        )
        for d in part.devices
        if d.work_after_window_ns > AFTER_WINDOW_SHARE * d.window_ns
    ]


def _who(part: RankPart) -> str:
    name = PurePath(part.source.path).name
    return name if part.source.rank is None else f"rank {part.source.rank} ({name})"
