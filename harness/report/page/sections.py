"""The page's sections about help, code, efficiency, the pipeline, work, time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import dedent

from harness.analysis.device_time import busiest_and_idlest, unknown_ns
from harness.analysis.labels import are_cpus, work_word
from harness.analysis.process.kinds import color_of_kind
from harness.analysis.summary import Device, LineShare, Memory, MemoryTimeline, Summary
from harness.common.display.format import amount, percent
from harness.common.display.palette import IDLE
from harness.common.run_folder import job_parts
from harness.common.run_folder.memory_snapshot import CATEGORIES
from harness.explain.commands import line_words, share_words
from harness.explain.findings import what_is_not_charged
from harness.explain.job_time import sentence, time_words
from harness.report.elements import Code, Figure, Section
from harness.report.page.inputs import Inputs
from harness.report.plots import plotly_json
from harness.report.plots.counters import counter_figures
from harness.report.tables.catalogue import page_tables
from harness.report.tables.job_time import SECTION as JOB_TIME
from harness.report.tables.job_time import facts
from harness.report.tables.memory import moment_words, shown_moment
from harness.report.tables.pipeline import pipeline_words
from harness.report.tables.time import SPLIT, device_labels, kind_label, labelled
from harness.report.window import PARTS

_POP = (
    "Only compute is useful; waiting inside a collective is not. The product of the factors is the efficiency above "
    "them. Load balance is low if some devices compute more than others. Communication is low if exposed "
    "communication and copies take much time. Orchestration is low if even the most active device is often idle."
)
_ON_CPU = " On a CPU, operators are counted instead of kernels, so Python between operators lowers orchestration."
_HELP = (
    "The events of all ranks are replayed with one thing changed. Waiting is charged to the rank that causes it. "
    "A bound is the most that can be gained: no run reaches it. Click a cause to see a step with it in the timeline."
)
_MANY = 48  # devices from which only the busiest and the idlest get a bar
_MOST_LINES = 40  # of steps, in the plot of memory
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def code_of(s: Summary, line_share: LineShare) -> Code:
    """The line of a finding with those around it, and its share of the loss."""
    caption = f"{line_words(s, line_share, sign='')}, {share_words(line_share)} of the loss"
    source = dedent("\n".join(line_share.source)).split("\n")
    return Code(caption, source, line_share.first_line, line_share.where.line or 0)


def efficiency_section(s: Summary, inputs: Inputs) -> Section:
    """The efficiencies of the counted steps; empty if they are withheld."""
    lead = _POP + _ON_CPU * are_cpus(s.devices)
    return Section("efficiency", "Efficiency", lead, tables=page_tables(s, "efficiency"))


def help_section(s: Summary, inputs: Inputs) -> Section:
    """Both tables, and a note if much waiting is charged to no rank; empty without a cause and a change."""
    tables = page_tables(s, "help")
    if not tables:
        return Section("help", "What would help")
    return Section("help", "What would help", _HELP, tables=tables, note=what_is_not_charged(s) or "")


def pipeline_section(s: Summary, inputs: Inputs) -> Section:
    """Its shape, one step as it ran, and its stages; empty for a job without a pipeline."""
    if s.pipeline is None:
        return Section("pipeline", "Pipeline")
    figures = [inputs.gantt] if inputs.gantt else []
    return Section("pipeline", "Pipeline", pipeline_words(s), figures, page_tables(s, "pipeline"))


def work_section(s: Summary, inputs: Inputs) -> Section:
    """The work that fills the devices' time; empty without any."""
    if not s.kinds:
        return Section("kernels", "Kernels by kind")
    lead = f"Sum of the times of all {work_word(s.devices)} on all devices. If two run at the same time, both count."
    tables = [*page_tables(s, "phases"), *page_tables(s, "kernels")]
    return Section("kernels", "Kernels by kind", lead, [_kinds(s)], tables)


def _kinds(s: Summary) -> Figure:
    kinds = [k for k in s.kinds if k.share >= 0.0005]
    labels, shares = [kind_label(k) for k in kinds], [percent(k.share) for k in kinds]
    style = {"text": shares, "textposition": "outside", "cliponaxis": False}
    style |= {"marker": {"color": [color_of_kind(k.kind) for k in kinds]}}
    data = [plotly_json.bars("time", [k.duration_ns / 1e6 for k in kinds], labels, "", **style)]
    axes = plotly_json.layout("time on all devices (ms)", plotly_json.NAMES, showlegend=False)
    most = ", ".join(f"{label} {share}" for label, share in zip(labels[:5], shares, strict=False))
    height = plotly_json.bars_height(len(kinds))
    return Figure("kinds", f"Time by kind of work: {most}.", data, axes, height)


def counters_section(s: Summary, inputs: Inputs) -> Section:
    """The hardware counters of every device, as nsys sampled them; empty without any."""
    figures = counter_figures(s)
    lead = "Samples of the GPUs' own counters over the profiled steps. They are of the whole device, whoever uses it."
    tables = page_tables(s, "counters")
    return Section("counters", "GPU counters over time", lead if figures else "", figures, tables)


def split_section(s: Summary, inputs: Inputs) -> Section:
    """Stacked bars of several devices, idle by cause; empty without a trace."""
    devices = [d for d in s.devices if d.window_ns]
    if not devices:
        return Section("split", "Where the time went")
    if len(devices) == 1:  # the step's bar shows its parts
        return Section(
            "split", "Where the time went", tables=[SPLIT.of(labelled(devices, s), s), *page_tables(s, "split")]
        )
    figures = [_split_figure(s, busiest_and_idlest(devices, _MANY, _MANY))]
    lead = (
        "Each bar is the window of one device: its profiled steps. Striped: communication hidden behind compute. "
        "Orange: communication without compute. Green: copies without either. The rest of the bar is idle, by cause."
        + (" Sand: not known." if any(map(unknown_ns, devices)) else "")
    )
    return Section("split", "Where the time went", lead, figures, page_tables(s, "split"))


def _bars(devices: Sequence[Device], labels: Sequence[str]) -> list[plotly_json.PlotTrace]:
    """The parts of every device's window in per cent, without parts that are too small to see."""
    cpu = are_cpus(devices)
    percents = {name: [round(100 * part.ns(d) / d.window_ns, 3) for d in devices] for name, part in PARTS.items()}
    seen = {name: values for name, values in percents.items() if max(values) >= 0.05}
    return [plotly_json.part_of_window(name, values, labels, cpu) for name, values in seen.items()]


def _split_figure(s: Summary, devices: Sequence[Device]) -> Figure:
    of_all = sum(1 for d in s.devices if d.window_ns)
    labels = device_labels(devices, s.devices)
    x = plotly_json.axis("share of the window (%)", range=[0, 100])
    axes = plotly_json.layout(x, plotly_json.NAMES, barmode="stack")
    some = f"the {_MANY // 2} busiest and the {_MANY // 2} idlest of {of_all} devices"
    every = f"{of_all} device{'s' * (of_all > 1)}"
    words = f"Parts of the window of {every if of_all == len(devices) else some}, in per cent."
    data, height = _bars(devices, labels), plotly_json.bars_height(len(devices))
    return Figure("time-split", words, data, axes, height, SPLIT.of(labelled(devices, s), s), wide=True)


def memory_section(s: Summary, inputs: Inputs) -> Section:
    """The memory of tensors by use; empty for a run without --memory-snapshot."""
    memory = s.memory
    if memory is None:
        return Section("memory", "Memory by use")
    line = memory.timeline
    facts = [(name, CATEGORIES[name].meaning) for name in _seen(line)] if line else []
    figures = [_area(line)] if line else []
    return Section("memory", "Memory by use", _lead(memory), figures, page_tables(s, "memory"), facts)


def _lead(memory: Memory) -> str:
    moment = shown_moment(memory)
    if moment is None:
        return ""
    if memory.failure is not None:
        held = amount(moment.total_bytes)
        return f"The training ran out of memory: {moment_words(moment)}. Tensors held {held}. {moment.error}"
    return f"Tensors held the most memory, {amount(moment.total_bytes)}, here: {moment_words(moment)}."


def _seen(memory_timeline: MemoryTimeline) -> list[str]:
    return [name for name, sizes in memory_timeline.bytes.items() if any(sizes)]


def _area(memory_timeline: MemoryTimeline) -> Figure:
    most = max(map(sum, zip(*memory_timeline.bytes.values(), strict=True)), default=0)
    scale, unit = next(((s, u) for s, u in _UNITS if most >= s), _UNITS[-1])
    x = [round(at / 1e9, 6) for at in memory_timeline.times_ns]
    data = []
    for name in _seen(memory_timeline):
        sizes, color = [round(size / scale, 4) for size in memory_timeline.bytes[name]], CATEGORIES[name].color
        style = {"mode": "lines", "stackgroup": "memory", "fillcolor": color, "line": {"color": color, "width": 0.5}}
        hover = f"%{{y:.4~g}} {unit}<extra>{name}</extra>"
        data.append(plotly_json.line(name, x, sizes, color, **style, hovertemplate=hover))
    y = plotly_json.axis(f"memory of tensors ({unit})", rangemode="tozero")
    # Of many steps none: the lines would hide the rest.
    begins = memory_timeline.steps.values() if len(memory_timeline.steps) <= _MOST_LINES else ()
    shapes = [plotly_json.upright(at / 1e9, "#9aa0a6", "dot", 1) for at in begins]
    axes = plotly_json.layout("time since the recording began (s)", y, shapes=shapes)
    words = (
        f"Memory of tensors on rank {memory_timeline.rank}, by use; the highest is {amount(most)}. Each point "
        f"is the highest "
        "moment of its interval. Dotted: a step begins."
    )
    return Figure("memory-timeline", words, data, axes, 380, wide=True)


def job_time_section(s: Summary, _inputs: Inputs) -> Section:
    """The job's elapsed time as one bar, with a sentence and its parts; empty if nothing recorded it."""
    found = s.job_time
    if found is None:
        return Section("job-time", "The job's time")
    data = [
        plotly_json.bars(
            part.part,
            [round(part.duration_ns / 1e9, 3)],
            ["job"],
            job_parts.PARTS.get(part.part, IDLE),
            hovertemplate=f"{part.part}: %{{x:,.4~r}} s, {percent(part.share)}<extra></extra>",
        )
        for part in found.parts
    ]
    axes = plotly_json.layout("time since the job began, its parts added up (s)", plotly_json.NAMES, barmode="stack")
    words = f"The {time_words(found.elapsed_ns)} of the job: {percent(found.useful_share)} are steps."
    figure = Figure("job-time", words, data, axes, plotly_json.bars_height(1), wide=True)
    tables = page_tables(s, JOB_TIME)
    return Section("job-time", "The job's time", sentence(found), [figure], tables, list(facts(found)))
