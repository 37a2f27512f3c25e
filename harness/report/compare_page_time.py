"""Where a step's time goes in several runs, side by side on one scale, and which part makes the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.compare import Comparison
from harness.analysis.facts import tokens_per_step
from harness.analysis.summary import Device, Summary
from harness.report import plots
from harness.report.compare_rows import letter
from harness.report.numbers import rate
from harness.report.page_parts import Figure, Section, Table
from harness.report.plots_palette import CAUSES, COMMUNICATION, COMPUTE, IDLE, MEMORY

_OVERLAPPED = "compute and communication"
_COLORS = {
    "compute": COMPUTE,
    _OVERLAPPED: COMPUTE,
    "exposed communication": COMMUNICATION,
    "copies alone": MEMORY,
    **{f"idle: {cause}": color for cause, color in CAUSES.items()},
    "idle, cause unknown": IDLE,
}
_WORTH_SHOWING = 0.0005  # of the longest bar
_WORTH_SAYING = 0.1  # of the difference


@dataclass(frozen=True)
class Split:
    """One run's step in parts, in the order of _COLORS; milliseconds, together as long as its median step."""

    index: int  # of the run; 0 is the base
    label: str
    parts: dict[str, float]

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


def splits(labels: Sequence[str], summaries: Sequence[Summary], pairs: Sequence[Comparison]) -> list[Split]:
    """Of every run that has a trace's numbers: per step, or per 1,000 tokens where steps are of unlike size."""
    per_token = is_per_token(summaries, pairs)
    return [
        Split(i, label, _parts(s, (tokens_per_step(s) or 0) / 1000 if per_token else 1.0))
        for i, (label, s) in enumerate(zip(labels, summaries, strict=True))
        if any(d.window_ns for d in s.devices)
    ]


def is_per_token(summaries: Sequence[Summary], pairs: Sequence[Comparison]) -> bool:
    """Whether steps are of unlike size, and how many tokens each takes is known of all."""
    return any(p.normalisation == "per token" for p in pairs) and all(map(tokens_per_step, summaries))


def split_section(found: Sequence[Split], per_token: bool) -> Section:
    """A bar per run, and the same in numbers with each part's difference to the base's."""
    title = "Where the time went"
    if not found:
        return Section("split", title, note="No run has a trace's summary.")
    unit = "ms per 1,000 tokens" if per_token else "ms"
    most = max(run.whole for run in found)
    shown = [name for name in _COLORS if max(run.parts[name] for run in found) > _WORTH_SHOWING * most]
    labels = [run.label for run in found]
    data = [_bar(name, [run.parts[name] for run in found], labels, unit) for name in shown]
    y = {"autorange": "reversed", "automargin": True, "type": "category"}
    axes = plots.layout(f"time of the median step ({unit}), mean of the devices", y, barmode="stack")
    each = "; ".join(f"{run.label} {run.whole:.4g} {unit}" for run in found)
    words = f"The median step of each run on one scale: {each}."
    lead = (
        "One bar is the median step of one run, divided as the devices' windows are. Striped: communication "
        "hidden behind compute. Orange: communication with nothing computed meanwhile."
    )
    numbers = _numbers(found, shown, unit)
    figure = Figure("time-split", words, data, axes, plots.bars_height(len(found)), numbers, wide=True)
    return Section("split", title, lead, [figure])


def explained(found: Sequence[Split], index: int, per_token: bool) -> str:
    """Which parts make the difference between the base and another run; nothing where there is none to speak
    of."""
    by_index = {run.index: run for run in found}
    if 0 not in by_index or index not in by_index:
        return ""
    base, other = by_index[0], by_index[index]
    whole = other.whole - base.whole
    changes = {name: other.parts[name] - base.parts[name] for name in _COLORS}
    large = [name for name in changes if abs(changes[name]) > _WORTH_SAYING * abs(whole)]
    large.sort(key=lambda name: -abs(changes[name]))
    if not large:
        return ""
    told = ", ".join(f"{_signed(changes[name])} {_words(name)}" for name in large[:3])
    return f"The difference, {_signed(whole)} ms per {'1,000 tokens' if per_token else 'step'}, is mostly {told}."


def _words(name: str) -> str:
    """A part's name inside a sentence."""
    return f"idle ({name.removeprefix('idle: ')})" if name.startswith("idle: ") else name


def _bar(name: str, values: Sequence[float], labels: Sequence[str], unit: str) -> dict[str, Any]:
    bar = (
        plots.overlapped(name, values, labels)
        if name == _OVERLAPPED
        else plots.across(name, values, labels, _COLORS[name])
    )
    return bar | {"hovertemplate": f"%{{y}}: %{{x:,.4~r}} {unit}<extra>{name}</extra>"}


def _numbers(found: Sequence[Split], shown: Sequence[str], unit: str) -> Table:
    others = [run for run in found[1:] if found[0].index == 0]
    names = [letter(run.index) for run in found]
    rows = [
        [
            name,
            *(rate(run.parts[name]) for run in found),
            *(_signed(run.parts[name] - found[0].parts[name]) for run in others),
        ]
        for name in shown
    ]
    rows.append(
        [
            "step",
            *(rate(run.whole) for run in found),
            *(_signed(run.whole - found[0].whole) for run in others),
        ]
    )
    head = ("", *names, *(f"{letter(run.index)} − a" for run in others))
    return Table(f"Parts of the median step, {unit}", head, rows)


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{rate(abs(value))}"


def _parts(s: Summary, tokens: float) -> dict[str, float]:
    window = sum(d.window_ns for d in s.devices)
    step_ns = s.steps.duration.median_ns if s.steps.duration else window / len(s.devices)
    return {
        name: sum(_part_ns(d, name) for d in s.devices) / window * step_ns / 1e6 / tokens for name in _COLORS
    }


def _part_ns(d: Device, name: str) -> int:
    known = {
        "compute": d.compute_ns - d.overlapped_communication_ns,
        _OVERLAPPED: d.overlapped_communication_ns,
        "exposed communication": d.exposed_communication_ns,
        "copies alone": d.exposed_memory_ns,
        "idle, cause unknown": (d.idle_ns or 0) - sum(c.duration_ns for c in d.idle_causes)
        if d.idle_ns
        else 0,
    }
    causes = {f"idle: {c.cause}": c.duration_ns for c in d.idle_causes}
    return known[name] if name in known else causes.get(name, 0)
