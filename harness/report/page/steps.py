"""The page's sections about steps and communication, and those of exercise 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from statistics import median
from typing import Any

from harness.analysis.labels import step_parts
from harness.analysis.process.host_calls import HostCause
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Collective, MessageSize, PaceChange, Summary
from harness.common.display.format import amount, duration, percent, rate
from harness.common.display.palette import COLLECTIVES, COMMUNICATION, COMPUTE, IDLE, MARKS, SERIES, of_series
from harness.report.elements import Figure, PageTable, Section, table
from harness.report.exercise_0.results import NO_LINE, MeasuredCollective
from harness.report.page.inputs import Inputs, StepRecord
from harness.report.plots import plotly_json
from harness.report.tables.catalogue import page_tables
from harness.report.tables.communication import SHOWN
from harness.report.tables.pace import pace_change_sentences, pace_sentences

_MANY_RANKS = len(SERIES)
_FEW = 12  # steps, each with its own mark on the axis
_PHASES = {"skip": "skipped", "wait": "profiler waits", "warmup": "profiler warms up", "active": "profiled"}
_NOT_COUNTED = "not counted"
_UNPROFILED = {phase: "counted" if phase == "active" else _NOT_COUNTED for phase in _PHASES}
_SHADES = {"warmup": HostCause.SYNCHRONISATION.color, "active": COMPUTE}
_WORDS = {"intra": "inside a node", "inter": "between nodes", "world": "among all ranks"}
_GROUPS = {"intra": "of {} ranks inside a node", "inter": "of {} ranks, one on each node,", "world": "of all {} ranks"}


def steps_section(s: Summary, inputs: Inputs) -> Section:
    """Step time over steps, per rank; empty without a step."""
    recorded = {_who(rank, rank): list(steps) for rank, steps in sorted(inputs.steps.items())}
    if recorded:
        phases = _UNPROFILED if (s.run or {}).get("expects") == [] else _PHASES
        figures = [_over_steps(recorded, s.pace_changes, phases)]
        lead = "Measured by the training's own clock."
        if any(x.phase == "active" for steps in inputs.steps.values() for x in steps):
            lead += " Blue: the counted steps."
            lead += " All numbers from the traces are of these steps." if s.devices else ""
    else:
        by_rank = {
            _who(r.rank, number): (r.steps or list(range(len(r.durations_ns))), [ns / 1e6 for ns in r.durations_ns])
            for number, r in enumerate(s.steps.per_rank)
            if r.durations_ns
        }
        figures = _from_trace(by_rank) if by_rank else []
        what = "periods" if by_periodicity(s.steps.source) else "steps"
        lead = f"From the trace: {s.steps.source}, {s.steps.counted} {what} counted of {s.steps.found}."
        lead += " Nothing marks the steps; a period may be a layer." if what == "periods" else ""
        from_zero = all((r.steps or [0])[0] == 0 for r in s.steps.per_rank)
        lead += f" In the recording the {what} count from 0." if from_zero else ""
        lead += " They are those of the device, since the host is ahead of it." if s.steps.on_device else ""
        if parts := step_parts(s.steps):
            lead += f" The mean step has {parts}."
    lead = " ".join([lead, *pace_change_sentences(s), *pace_sentences(s)])
    return Section("steps", "Step time", lead if figures else "", figures, page_tables(s, "steps"))


def _from_trace(times_by_rank: dict[str, tuple[list[int], list[float]]]) -> list[Figure]:
    """Lines, or one bar per rank if no rank has enough steps for them. times_by_rank: numbers, and milliseconds."""
    by_rank = {r: times for r, (_, times) in times_by_rank.items()}
    if max(map(len, by_rank.values())) > 2:
        words = "Duration of the counted steps of each rank, milliseconds. " + _range_in_words(by_rank.values())
        axes = plotly_json.layout(_step_axis(times_by_rank), "step time (ms)")
        return [Figure("step-time", words, _lines(times_by_rank), axes)]
    ranks = list(by_rank)
    data = [plotly_json.bars("step time", [median(by_rank[r]) for r in ranks], ranks, SERIES[0])]
    words = "Median duration of the counted steps of each rank, milliseconds. " + _range_in_words(by_rank.values())
    axes = plotly_json.layout("step time (ms)", plotly_json.NAMES, showlegend=False)
    return [Figure("step-time", words, data, axes, plotly_json.bars_height(len(ranks)))]


def _who(rank: int | None, number: int) -> str:
    return f"process {number}" if rank is None else f"rank {rank}"


def _over_steps(
    recorded: dict[str, list[StepRecord]], changes: Sequence[PaceChange], phases: Mapping[str, str]
) -> Figure:
    series = {r: ([x.step for x in steps], [x.step_ns / 1e6 for x in steps]) for r, steps in recorded.items()}
    first = next(iter(recorded.values()))
    shapes, bands = _phase_bands(first, phases)
    onsets, marks = _onsets(changes)
    x = _step_axis(series)
    axes = plotly_json.layout(x, "step time (ms)", shapes=[*shapes, *onsets], showlegend=True)
    words = "Step time of each rank over the steps of the training, milliseconds. "
    words += _range_in_words(y for _, y in series.values())
    return Figure("step-time", words, [*_lines(series), *bands, *marks], axes, table=_phase_table(recorded, phases))


def _step_axis(times_by_rank: dict[str, tuple[list[int], list[float]]]) -> dict[str, Any]:
    """An axis of steps; few steps get a mark each, since half a step does not exist."""
    few = max(len(x) for x, _ in times_by_rank.values()) <= _FEW
    return plotly_json.axis("step", **({"dtick": 1} if few else {}))


def _range_in_words(series: Iterable[Sequence[float]]) -> str:
    values = list(chain(*series))
    return "" if not values else f"From {min(values):.4g} to {max(values):.4g} ms, median {median(values):.4g} ms."


def _lines(times_by_rank: dict[str, tuple[list[int], list[float]]]) -> list[dict[str, Any]]:
    """A line per rank; for many ranks the median, the extremes, and the slowest rank."""
    if len(times_by_rank) <= _MANY_RANKS:
        return [plotly_json.line(r, x, y, of_series(i)) for i, (r, (x, y)) in enumerate(times_by_rank.items())]
    length = min(len(y) for _, y in times_by_rank.values())
    columns = [[y[i] for _, y in times_by_rank.values()] for i in range(length)]
    x = next(iter(times_by_rank.values()))[0][:length]
    slowest = max(times_by_rank, key=lambda r: median(times_by_rank[r][1]))
    return [
        plotly_json.line("fastest rank of the step", x, [min(c) for c in columns], SERIES[2]),
        plotly_json.line(f"median of {len(times_by_rank)} ranks", x, [median(c) for c in columns], SERIES[0]),
        plotly_json.line("slowest rank of the step", x, [max(c) for c in columns], SERIES[3]),
        plotly_json.line(f"{slowest}, the slowest", *times_by_rank[slowest], SERIES[1]),
    ]


def _phase_bands(
    steps: Sequence[StepRecord], phases: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Shades behind the profiler's phases, and their legend: words above phases of one step would overlap."""
    shapes, named = [], []
    for phase, color in _SHADES.items():
        inside = [x.step for x in steps if x.phase == phase]
        if not inside or phases[phase] == _NOT_COUNTED:
            continue
        shapes.append(plotly_json.band(min(inside) - 0.5, max(inside) + 0.5, color))
        patch = plotly_json.line(phases[phase], [None], [None], color, mode="markers", hoverinfo="skip")
        named.append(patch | {"marker": {"color": color, "symbol": "square", "size": 12, "opacity": 0.4}})
    return shapes, named


def _onsets(changes: Sequence[PaceChange]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line where each new pace begins, between two steps, and their entry in the legend."""
    color = HostCause.HOST.color
    shapes = [plotly_json.upright(x.step - 0.5, color, "dash", 1.5) for x in changes]
    entry = plotly_json.line("a new pace begins", [None], [None], color, mode="lines", hoverinfo="skip")
    return shapes, [entry | {"line": shape["line"]} for shape in shapes[:1]]


def _phase_table(recorded: dict[str, list[StepRecord]], phases: Mapping[str, str]) -> PageTable:
    rows = []
    for rank, steps in recorded.items():
        for phase in dict.fromkeys(x.phase for x in steps):
            ns = [x.step_ns for x in steps if x.phase == phase]
            rows.append([rank, phases.get(phase, phase), str(len(ns)), *map(duration, (median(ns), min(ns), max(ns)))])
    return PageTable("Step time by phase", ("rank", "phase", "steps", "median", "fastest", "slowest"), rows, 2)


def communication_section(s: Summary, inputs: Inputs) -> Section:
    """Per kind of collective: count, bytes, bandwidth, waiting and transfer, last arrivals; empty without any."""
    if not s.collectives:
        return Section("collectives", "Collectives")
    figures = [_wait_and_transfer(s)]
    if s.message_sizes:
        figures += [_times(s.message_sizes)]
    lead = (
        "Waiting is how much longer a rank is in a collective than the fastest rank, since others have not started it. "
        "Transfer is the rest. If a rank was not read or not matched, the two cannot be separated. "
        "Bus bandwidth is as nccl-tests defines it."
    )
    return Section("collectives", "Collectives", lead, figures, page_tables(s, "collectives"))


def transport_section(s: Summary, inputs: Inputs) -> Section:
    """The transport that NCCL chose, from its own log; empty without a log."""
    lead = "From NCCL's own log, which --nccl-debug keeps."
    return Section("nccl", "Transport chosen by NCCL", lead, tables=page_tables(s, "nccl"))


def _labels(collectives: Sequence[Collective]) -> list[str]:
    """Distinct labels: Plotly draws two bars with one name as one bar."""
    labels: list[str] = []
    for c in collectives:
        name = f"{c.kind} {c.dtype or ''}{f' · group {c.group}' if c.group else ''}".strip()
        numbered = (f"{name} ({number})" for number in count(2))
        labels.append(next(label for label in chain([name], numbered) if label not in labels))
    return labels


def _wait_and_transfer(s: Summary) -> Figure:
    chosen = s.collectives[:SHOWN]
    labels = _labels(chosen)
    known = [c for c in chosen if c.waiting_ns is not None]
    waiting = [(c.waiting_ns or 0) / 1e6 for c in chosen]
    whole = [0.0 if c.waiting_ns is not None else c.duration_ns / 1e6 for c in chosen]
    transfer = [(c.transfer_ns or 0) / 1e6 for c in chosen]
    profiler = [c.profiler_ns / 1e6 for c in chosen]
    both = plotly_json.stripes(COMMUNICATION, HostCause.COMMUNICATION.color)
    data = [
        plotly_json.bars("transfer", transfer, labels, COMMUNICATION),
        plotly_json.bars("waiting for other ranks", waiting, labels, HostCause.COMMUNICATION.color),
        plotly_json.bars("waiting for a profiler", profiler, labels, IDLE),
        plotly_json.bars("transfer and waiting together", whole, labels, "", marker=both),
    ]
    axes = plotly_json.layout("time, all ranks (ms)", plotly_json.NAMES, barmode="stack")
    share = sum(c.waiting_ns or 0 for c in known) / max(sum(c.duration_ns - c.profiler_ns for c in known), 1)
    words = f"Time in collectives by kind. {percent(share)} of it is waiting for other ranks." if known else (
        "Time in collectives by kind. It includes waiting for other ranks, because the ranks could not be matched."
    )  # fmt: skip
    drawn = [trace for trace in data if any(trace["x"])]
    return Figure("collectives-time", words, drawn, axes, plotly_json.bars_height(len(chosen)), wide=True)


def _tone(index: int) -> str:
    return COLLECTIVES[index % len(COLLECTIVES)]


def _mark(index: int, size: int) -> dict[str, Any]:
    return {"color": _tone(index), "size": size, "symbol": MARKS[index % len(MARKS)]}


def _times(sizes: Sequence[MessageSize]) -> Figure:
    """Transfer time against size, log-log."""
    data: list[dict[str, Any]] = []
    for i, kind in enumerate(dict.fromkeys(m.kind for m in sizes)):
        points, color = [m for m in sizes if m.kind == kind], _tone(i)
        x, times = [m.bytes for m in points], [m.median_transfer_ns / 1e3 for m in points]
        data.append(plotly_json.line(kind, x, times, color, mode="markers") | {"marker": _mark(i, 9)})
    size = plotly_json.axis("message size (bytes)", type="log", exponentformat="SI")
    what, remark = _what_is_timed(sizes)
    y = plotly_json.axis(f"median {what.rstrip(',')} (µs)", type="log")
    words = f"Median {what} of each message size, both axes logarithmic.{remark}"
    return Figure("transfer-times", words, data, plotly_json.layout(size, y), 340)


def _what_is_timed(sizes: Sequence[MessageSize]) -> tuple[str, str]:
    """What the times contain: transfer, and waiting too if ranks could not be matched; a remark if kinds differ."""
    waits = dict.fromkeys(m.kind for m in sizes if m.includes_waiting)
    if not waits:
        return "transfer time", ""
    if all(m.includes_waiting for m in sizes):
        return "time, waiting included,", ""
    some = f" The time of {', '.join(waits)} includes waiting for other ranks. The other times are transfer alone."
    return "time", some


def tests_section(s: Summary, inputs: Inputs) -> Section:
    """Curves per scope; empty for any other exercise."""
    tested = inputs.tested
    scopes = list(dict.fromkeys(t.scope for t in tested))
    figures = [_scope(scope, [t for t in tested if t.scope == scope]) for scope in scopes]
    rows = [[t.collective, t.scope, str(t.ranks), *_fit_cells(t), rate(_best(t))] for t in tested]
    bandwidths = ("1/β (alg GB/s)", "1/β (bus GB/s)", "best measured (bus GB/s)")
    tables = table("time = α + β·bytes", ("collective", "scope", "ranks", "α", *bandwidths), rows, left=2)
    lead = (
        "Algorithm bandwidth (alg) is message size over time. Bus bandwidth (bus) is scaled to the bytes that each "
        "link carries, as nccl-tests defines it. α is the time of an empty message. 1/β is the bandwidth of an "
        "infinitely long message."
    )
    if not all(t.line for t in tested):
        lead += f" {NO_LINE}"
    return Section("links", "Collectives measured", lead, figures, tables)


def answer_sentences(inputs: Inputs) -> list[str]:
    """The verdict with its problems, and what was measured, in a sentence per scope; empty for another exercise."""
    verdict = inputs.verdict
    sentences = []
    if verdict is not None:
        problems = [f"Problem: {f.message}." for f in verdict.findings if f.level == "problem"]
        sentences = [verdict.verdict.removeprefix("VERDICT: "), *problems]
    reduced = [t for t in inputs.tested if t.collective == "all_reduce"]
    groups = (_GROUPS.get(t.scope, "of {} ranks").format(t.ranks) for t in reduced)
    return sentences + [f"An all-reduce {group} {_speed(t)}." for group, t in zip(groups, reduced, strict=True)]


def _speed(t: MeasuredCollective) -> str:
    best = f"reaches {rate(_best(t))} GB/s of bus bandwidth"
    if t.line is None:
        why = f"R² of its line is {t.fit.r2_log:.2f}" if t.fit else "too few message sizes were measured"
        return f"{best}; α is not known, because {why}"
    half = f"messages of about {amount(t.line.half_bytes())} reach half of the highest bandwidth"
    return f"starts in {duration(t.line.alpha_ns)} and {best}; {half}"


def _best(t: MeasuredCollective) -> float:
    return max(p.busbw_gbytes_per_s for p in t.points)


def _fit_cells(t: MeasuredCollective) -> tuple[str, str, str]:
    if t.line is None:
        return t.alpha_text(), "–", "–"
    bus = t.line.endless_bus_gb_per_s(t.collective, t.ranks)
    return duration(t.line.alpha_ns), rate(t.line.endless_gb_per_s()), rate(bus)


def _scope(scope: str, tested: Sequence[MeasuredCollective]) -> Figure:
    size, where = plotly_json.axis("message size (bytes)", type="log", exponentformat="SI"), _WORDS.get(scope, scope)
    data = []
    for i, t in enumerate(tested):
        mark = {"mode": "lines+markers", "marker": _mark(i, 7)}
        sizes = [p.message_bytes for p in t.points]
        busbw = [p.busbw_gbytes_per_s for p in t.points]
        data.append(plotly_json.line(t.collective, sizes, busbw, _tone(i)) | mark)
    axes = plotly_json.layout(size, plotly_json.axis("bus bandwidth (GB/s)", rangemode="tozero"))
    words = f"Bus bandwidth of each collective {where} against message size."
    return Figure(f"bus-bandwidth-{scope}", words, data, axes, 340)
