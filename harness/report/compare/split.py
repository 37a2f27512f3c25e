"""The parts of a step in several runs, side by side on one scale: the page's bars and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.format.format import rate
from harness.report.compare.breakdown import StepParts, signed
from harness.report.compare.tables import letter
from harness.report.elements import Figure, Section, Table
from harness.report.plots import plotly_json
from harness.report.window import OVERLAPPED, PARTS, part_label

_WORTH_SHOWING = 0.0005  # of the longest bar


def split_section(found: Sequence[StepParts], per_token: bool) -> Section:
    """A bar per run, and the same in numbers with each part's difference to the base's."""
    title = "Where the time went"
    if not found:
        return Section("split", title)
    unit = "ms per 1,000 tokens" if per_token else "ms"
    most = max(run.whole for run in found)
    shown = [name for name in PARTS if max(run.parts[name] for run in found) > _WORTH_SHOWING * most]
    labels = [run.label for run in found]
    cpu = all(run.cpu for run in found)
    data = [_bar(name, [run.parts[name] for run in found], labels, unit, cpu) for name in shown]
    x = f"time of the median step ({unit}), mean of the devices"
    axes = plotly_json.layout(x, plotly_json.NAMES, barmode="stack")
    each = "; ".join(f"{run.label} {run.whole:.4g} {unit}" for run in found)
    words = f"The median step of each run: {each}."
    lead = (
        "Each bar is the median step of one run. Its parts have the shares that they have in the devices' windows. "
        "Striped: communication hidden behind compute. Orange: communication without compute."
        + (" Sand: not known." if any(run.withheld for run in found) else "")
    )
    numbers = _numbers(found, shown, unit)
    figure = Figure("time-split", words, data, axes, plotly_json.bars_height(len(found)), numbers, wide=True)
    return Section("split", title, lead, [figure])


def _bar(name: str, values: Sequence[float], labels: Sequence[str], unit: str, cpu: bool) -> dict[str, Any]:
    label, striped = part_label(name, cpu), name == OVERLAPPED
    bar = plotly_json.part_of_window(label, values, labels, PARTS[name].color, striped=striped)
    return bar | {"hovertemplate": f"%{{y}}: %{{x:,.4~r}} {unit}<extra>{label}</extra>"}


def _value(run: StepParts, name: str) -> str:
    """Milliseconds; a dash for a part of which nothing is known."""
    return "–" if name in run.withheld and not run.parts[name] else rate(run.parts[name])


def _difference(run: StepParts, base: StepParts, name: str) -> str:
    """Milliseconds more than the base; a dash if one of the runs withholds the part."""
    return "–" if name in run.withheld | base.withheld else signed(run.parts[name] - base.parts[name])


def _numbers(found: Sequence[StepParts], shown: Sequence[str], unit: str) -> Table:
    others, cpu = [run for run in found[1:] if found[0].index == 0], all(run.cpu for run in found)
    rows = []
    for name in shown:
        differences = (_difference(run, found[0], name) for run in others)
        rows.append([part_label(name, cpu), *(_value(run, name) for run in found), *differences])
    differences = (signed(run.whole - found[0].whole) for run in others)
    rows.append(["step", *(rate(run.whole) for run in found), *differences])
    names = (letter(run.index) for run in found)
    head = ("", *names, *(f"{letter(run.index)} − a" for run in others))
    return Table(f"Parts of the median step, {unit}", head, rows)
