"""A step of several runs in parts that add up, and a sentence about what makes the difference. Knows no plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.analysis.device_time import with_known
from harness.analysis.labels import are_cpus, cause_word
from harness.analysis.metric_values import step_durations_ns, tokens_per_step
from harness.analysis.scaling import Scaling, how_it_scales
from harness.analysis.summary import Device, Summary
from harness.analysis.summary.efficiency import POP_FACTORS, SERIES_FACTORS
from harness.common.display.format import percent, rate
from harness.compare.summaries import SummaryDifferences
from harness.report.compare.tables import ONE_RUN_EACH, doubts, letter, others
from harness.report.compare.verdicts import verdict_table
from harness.report.elements import Figure, PageTable, Section
from harness.report.plots import plotly_json
from harness.report.window import NOT_KNOWN, OVERLAPPED, PARTS, part_label

_WORTH_SAYING = 0.1  # of the difference
_WORTH_SHOWING = 0.0005  # of the longest bar
CAPTION = "Efficiency as POP defines it; an indented efficiency is a factor of the one above it"


@dataclass(frozen=True)
class StepParts:
    """One run's step in parts, in the order of PARTS; milliseconds, together as long as `step_ns`."""

    index: int  # of the run; 0 is the base
    label: str
    parts: dict[str, float]
    cpu: bool = False
    withheld: frozenset[str] = frozenset()  # parts of which something was withheld

    @property
    def whole(self) -> float:
        return sum(self.parts.values())


def steps_in_parts(
    labels: Sequence[str], summaries: Sequence[Summary], pairs: Sequence[SummaryDifferences]
) -> list[StepParts]:
    """The parts of every run with a trace: per step, or per 1,000 tokens if the runs' steps differ in size."""
    per_token, found = is_per_token(summaries, pairs), []
    for i, (label, s) in enumerate(zip(labels, summaries, strict=True)):
        if any(d.window_ns for d in s.devices):
            parts = _parts(s, (tokens_per_step(s) or 0) / 1000 if per_token else 1.0)
            found.append(StepParts(i, label, parts, are_cpus(s.devices), _withheld(s.devices)))
    return found


def is_per_token(summaries: Sequence[Summary], pairs: Sequence[SummaryDifferences]) -> bool:
    """Whether the runs' steps differ in size and every run's tokens per step are known."""
    return any(p.normalisation == "per token" for p in pairs) and all(map(tokens_per_step, summaries))


def explained(step_parts: Sequence[StepParts], index: int, per_token: bool) -> str:
    """The parts that make the difference to the base; empty if none is large, or a withheld part can be the cause."""
    by_index = {run.index: run for run in step_parts}
    if 0 not in by_index or index not in by_index:
        return ""
    base, other = by_index[0], by_index[index]
    if base.withheld or other.withheld:
        return ""
    whole = other.whole - base.whole
    changes = {name: other.parts[name] - base.parts[name] for name in PARTS}
    large = [name for name in changes if abs(changes[name]) > _WORTH_SAYING * abs(whole)]
    if not large:
        return ""
    large.sort(key=lambda name: -abs(changes[name]))
    text = ", ".join(f"{signed(changes[name])} ms {_words(name, other.cpu)}" for name in large[:3])
    unit = "1,000 tokens" if per_token else "step"
    return f"The difference, {signed(whole)} ms per {unit}, is mostly {text}."


def _words(name: str, cpu: bool) -> str:
    cause = name.removeprefix("idle: ")
    return f"idle ({cause_word(cause, cpu)})" if cause != name else name


def signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{rate(abs(value))}"


def _parts(s: Summary, tokens: float) -> dict[str, float]:
    window = sum(d.window_ns for d in s.devices)
    step_ns = median(step_durations_ns(s) or [window / len(s.devices)])
    return {name: sum(map(part.ns, s.devices)) / window * step_ns / 1e6 / tokens for name, part in PARTS.items()}


def _withheld(devices: Sequence[Device]) -> frozenset[str]:
    """Parts that a device withholds. Without its communication, the part of compute that hides it is withheld too."""
    found: set[str] = set()
    if len(with_known(devices, "exposed_communication_ns")) < len(devices):
        found |= {"compute", OVERLAPPED, "exposed communication", NOT_KNOWN}
    if len(with_known(devices, "idle_ns")) < len(devices):
        found |= {name for name in PARTS if name.startswith("idle")} | {NOT_KNOWN}
    return frozenset(found)


def split_section(step_parts: Sequence[StepParts], per_token: bool) -> Section:
    """A bar per run, and the same in numbers with each part's difference to the base's."""
    title = "Where the time went"
    if not step_parts:
        return Section("split", title)
    unit = "ms per 1,000 tokens" if per_token else "ms"
    most = max(run.whole for run in step_parts)
    shown = [name for name in PARTS if max(run.parts[name] for run in step_parts) > _WORTH_SHOWING * most]
    labels = [run.label for run in step_parts]
    cpu = all(run.cpu for run in step_parts)
    data = [_bar(name, [run.parts[name] for run in step_parts], labels, unit, cpu) for name in shown]
    x = f"time of the median step ({unit}), mean of the devices"
    axes = plotly_json.layout(x, plotly_json.NAMES, barmode="stack")
    each = "; ".join(f"{run.label} {run.whole:.4g} {unit}" for run in step_parts)
    words = f"The median step of each run: {each}."
    lead = (
        "Each bar is the median step of one run. Its parts have the shares that they have in the devices' windows. "
        "Striped: communication hidden behind compute. Orange: communication without compute."
        + (" Sand: not known." if any(run.withheld for run in step_parts) else "")
    )
    numbers = _numbers(step_parts, shown, unit)
    figure = Figure("time-split", words, data, axes, plotly_json.bars_height(len(step_parts)), numbers, wide=True)
    return Section("split", title, lead, [figure])


def _bar(name: str, values: Sequence[float], labels: Sequence[str], unit: str, cpu: bool) -> dict[str, Any]:
    bar = plotly_json.part_of_window(name, values, labels, cpu)
    return bar | {"hovertemplate": f"%{{y}}: %{{x:,.4~r}} {unit}<extra>{bar['name']}</extra>"}


def _value(step_parts: StepParts, name: str) -> str:
    """Milliseconds; a dash for a part of which nothing is known."""
    return "–" if name in step_parts.withheld and not step_parts.parts[name] else rate(step_parts.parts[name])


def _difference(step_parts: StepParts, base_parts: StepParts, name: str) -> str:
    """Milliseconds more than the base; a dash if one of the runs withholds the part."""
    return (
        "–"
        if name in step_parts.withheld | base_parts.withheld
        else signed(step_parts.parts[name] - base_parts.parts[name])
    )


def _numbers(step_parts: Sequence[StepParts], shown: Sequence[str], unit: str) -> PageTable:
    compared, cpu = [run for run in step_parts[1:] if step_parts[0].index == 0], all(run.cpu for run in step_parts)
    rows = []
    for name in shown:
        differences = (_difference(run, step_parts[0], name) for run in compared)
        rows.append([part_label(name, cpu), *(_value(run, name) for run in step_parts), *differences])
    differences = (signed(run.whole - step_parts[0].whole) for run in compared)
    rows.append(["step", *(rate(run.whole) for run in step_parts), *differences])
    names = (letter(run.index) for run in step_parts)
    head = ("", *names, *(f"{letter(run.index)} − a" for run in compared))
    return PageTable(f"Parts of the median step, {unit}", head, rows)


def rows_of(pairs: Sequence[SummaryDifferences]) -> list[Scaling]:
    """The places in their series of all compared runs, the base's first."""
    return [pairs[0].scaling[0], *(pair.scaling[1] for pair in pairs)]


def series_table(names: Sequence[str], summaries: Sequence[Summary], scalings: Sequence[Scaling]) -> PageTable:
    """A column per run: its devices and work, what follows from the smallest run's compute, and its efficiencies."""
    unit = f"{scalings[0].unit} per step" if scalings[0].unit else "work per step"
    efficiencies = [
        (factor.indented("· "), [_or_unknown(getattr(s.pop, factor.field, None), percent) for s in summaries])
        for factor in POP_FACTORS
    ]
    of_runs = [
        ("devices", [_or_unknown(row.devices, rate) for row in scalings]),
        (unit, [_or_unknown(row.work_per_step, rate) for row in scalings]),
        *(
            (factor.indented("· "), [_or_unknown(getattr(row, factor.field), percent) for row in scalings])
            for factor in reversed(SERIES_FACTORS)  # the whole is first
        ),
        *((f"· {label}", cells) for label, cells in efficiencies),
    ]
    return PageTable(CAPTION, ("", *names), [(label, *cells) for label, cells in of_runs])


def _or_unknown(value: float | None, text: Callable[[float], str]) -> str:
    return NOT_KNOWN if value is None else text(value)


def series_notes(names: Sequence[str], summaries: Sequence[Summary], scalings: Sequence[Scaling]) -> list[str]:
    """How the series scales, relative to which run, and why numbers are not known."""
    why = [(name, s.pop.split_unknown) for name, s in zip(names, summaries, strict=True) if s.pop is not None]
    split = [f"Serialisation and transfer are not known for {of}: {reason}" for reason, of in _by_reason(why)]
    return [*_scaling_notes(names, scalings), *split]


def _by_reason(reasons: Sequence[tuple[str, str | None]]) -> list[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for name, reason in reasons:
        if reason is not None:
            found.setdefault(reason, []).append(name)
    return [(reason, ", ".join(of)) for reason, of in found.items()]


def _scaling_notes(names: Sequence[str], scalings: Sequence[Scaling]) -> Iterator[str]:
    smallest = min((row.devices, i) for i, row in enumerate(scalings) if row.devices)[1]
    if how := how_it_scales(scalings):
        yield (
            f"{how[0].upper()}{how[1:]}. Computation scalability: the compute time of {names[smallest]}'s devices "
            "per unit of work, divided by this run's"
        )
    for reason, of in _by_reason([(name, row.unknown) for name, row in zip(names, scalings, strict=True)]):
        yield f"Computation scalability is not known for {of}: {reason}"


def steps_section(pairs: Sequence[SummaryDifferences]) -> Section:
    """The median step of each run against the base's, with its interval."""
    rows = [
        (f"{other}, {pair.normalisation}", pair.step_time)
        for other, pair in others(pairs)
        if pair.step_time is not None
    ]
    if not rows:
        return Section("steps", "Step time")
    caption = "Median step time, and its difference to a's with half of the bootstrap interval"
    lead = " ".join([ONE_RUN_EACH, *(f"Doubtful: {doubt}." for doubt in doubts(pairs))])
    return Section("steps", "Step time", lead, tables=[verdict_table(rows, ("a", "this run"), caption, "run")])
