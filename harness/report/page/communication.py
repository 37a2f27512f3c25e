"""The page's section about collectives: time, bandwidth, waiting, and the bandwidth that exercise 0 measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.analysis.summary import Collective, MessageSize, Summary
from harness.format.format import amount, binary_size, duration, percent
from harness.report.elements import Figure, Section, Table, table
from harness.report.exercise_0.results import Fit, Result
from harness.report.page.inputs import Inputs
from harness.report.palette import CAUSES, COLLECTIVES, COMMUNICATION, IDLE, MARKS
from harness.report.plots import plotly_json
from harness.report.tables.catalogue import page_tables
from harness.report.tables.communication import SHOWN, inverse

_AROUND = 4  # to either side of a message size that stands alone
_FITTED_AS = {"send": "send_recv", "recv": "send_recv"}  # exercise 0 measures the two together


def communication_section(s: Summary, inputs: Inputs) -> Section:
    """Per kind of collective: count, bytes, bandwidth, waiting and transfer, last arrivals; empty without any."""
    if not s.collectives:
        return Section("collectives", "Collectives")
    figures = [_wait_and_transfer(s)]
    if s.message_sizes:
        figures += [_histogram(s), _times(s.message_sizes, inputs.links)]
    lead = (
        "Waiting is how much longer a rank is in a collective than the fastest rank, since others have not started it. "
        "Transfer is the rest. If a rank was not read or not matched, the two cannot be separated. "
        "Bus bandwidth is as nccl-tests defines it. " + (f"{inputs.links_note}." if inputs.links_note else "")
    ).strip()
    tables = [*page_tables(s, "collectives"), *_fits(inputs.links)]
    return Section("collectives", "Collectives", lead, figures, tables)


def transport_section(s: Summary, inputs: Inputs) -> Section:
    """The transport that NCCL chose, from its own log; empty without a log."""
    if s.nccl is None:
        return Section("nccl", "Transport chosen by NCCL")
    lead = "From NCCL's own log, which --nccl-debug keeps."
    return Section("nccl", "Transport chosen by NCCL", lead, tables=page_tables(s, "nccl"))


def _label(c: Collective) -> str:
    group = f" · group {c.group}" if c.group else ""
    return f"{c.kind} {c.dtype or ''}{group}".strip()


def _labels(collectives: Sequence[Collective]) -> list[str]:
    """Distinct labels: Plotly draws two bars with one name as one bar."""
    labels: list[str] = []
    for c in collectives:
        label, n = _label(c), 2
        while label in labels:
            label, n = f"{_label(c)} ({n})", n + 1
        labels.append(label)
    return labels


def _wait_and_transfer(s: Summary) -> Figure:
    chosen = s.collectives[:SHOWN]
    labels = _labels(chosen)
    known = [c for c in chosen if c.waiting_ns is not None]
    waiting = [(c.waiting_ns or 0) / 1e6 for c in chosen]
    whole = [0.0 if c.waiting_ns is not None else c.duration_ns / 1e6 for c in chosen]
    transfer = [(c.transfer_ns or 0) / 1e6 for c in chosen]
    profiler = [c.profiler_ns / 1e6 for c in chosen]
    both = plotly_json.stripes(COMMUNICATION, CAUSES["communication"])
    data = [
        plotly_json.bars("transfer", transfer, labels, COMMUNICATION),
        plotly_json.bars("waiting for other ranks", waiting, labels, CAUSES["communication"]),
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


def _histogram(s: Summary) -> Figure:
    """Messages by size, in powers of two, stacked by kind."""
    sizes = s.message_sizes
    kinds = list(dict.fromkeys(m.kind for m in sizes))
    buckets = sorted({_bucket(m.bytes) for m in sizes})
    span = range(buckets[0], buckets[-1] + 1)
    labels = [binary_size(2**b) for b in span]
    data: list[dict[str, Any]] = []
    for i, kind in enumerate(kinds):
        counts = [sum(m.count for m in sizes if m.kind == kind and _bucket(m.bytes) == b) for b in span]
        data.append({"type": "bar", "name": kind, "x": labels, "y": counts, "marker": {"color": _tone(i)}})
    x = plotly_json.axis("message size (from this power of two to the next)", type="category")
    low, high = (amount(f(m.bytes for m in sizes)) for f in (min, max))
    words = f"Number of messages by size: {sum(m.count for m in sizes):,} messages from {low} to {high}."
    return Figure("message-sizes", words, data, plotly_json.layout(x, "messages", barmode="stack"), 300)


def _tone(index: int) -> str:
    return COLLECTIVES[index % len(COLLECTIVES)]


def _bucket(size: int) -> int:
    return max(size, 1).bit_length() - 1


def _times(sizes: Sequence[MessageSize], links: Sequence[Result]) -> Figure:
    """Transfer time against size, log-log, beside the lines that exercise 0 measured here."""
    data: list[dict[str, Any]] = []
    for i, kind in enumerate(dict.fromkeys(m.kind for m in sizes)):
        points, color = [m for m in sizes if m.kind == kind], _tone(i)
        x, times = [m.bytes for m in points], [m.median_transfer_ns / 1e3 for m in points]
        marker = {"color": color, "size": 9, "symbol": MARKS[i % len(MARKS)]}
        data.append(plotly_json.line(kind, x, times, color, mode="markers") | {"marker": marker})
        fitted = [(r, r.fit) for r in links if r.fit and r.collective == _FITTED_AS.get(kind, kind)]
        data += [_fit_line(result, fit, sizes, color) for result, fit in fitted]
    size = plotly_json.axis("message size (bytes)", type="log", exponentformat="SI")
    what, remark = _what_is_timed(sizes)
    y = plotly_json.axis(f"median {what.rstrip(',')} (µs)", type="log")
    beside = " Lines: α + β·bytes, as exercise 0 measured on this site." if links else ""
    words = f"Median {what} of each message size, both axes logarithmic.{remark}{beside}"
    return Figure("transfer-times", words, data, plotly_json.layout(size, y), 340)


def _what_is_timed(sizes: Sequence[MessageSize]) -> tuple[str, str]:
    """What the times contain: transfer, and waiting too if ranks could not be matched; a remark if kinds differ."""
    waits = list(dict.fromkeys(m.kind for m in sizes if m.includes_waiting))
    if not waits:
        return "transfer time", ""
    if all(m.includes_waiting for m in sizes):
        return "time, waiting included,", ""
    return (
        "time",
        f" The time of {', '.join(waits)} includes waiting for other ranks. The other times are transfer alone.",
    )


def _fit_line(result: Result, fit: Fit, sizes: Sequence[MessageSize], color: str) -> dict[str, Any]:
    low, high = max(min(m.bytes for m in sizes), 1), max(m.bytes for m in sizes)
    if high <= low:  # a single size gives a line without length
        low, high = max(low // _AROUND, 1), low * _AROUND
    xs = [low * (high / low) ** (i / 20) for i in range(21)]
    ys = [(fit.alpha_ns + fit.beta_ns_per_byte * x) / 1e3 for x in xs]
    style = {"mode": "lines", "line": {"color": color, "dash": "dot", "width": 1.5}}
    return plotly_json.line(f"{result.collective} {result.scope}, exercise 0", xs, ys, color) | style


def _fits(links: Sequence[Result]) -> list[Table]:
    rows = [
        [
            r.collective,
            r.scope,
            str(r.ranks),
            duration(r.fit.alpha_ns),
            inverse(r.fit.beta_ns_per_byte),
            r.run,
        ]
        for r in links
        if r.fit is not None
    ]
    head = ("collective", "scope", "ranks", "α", "1/β (alg)", "run")
    return table("What exercise 0 measured on this site: time = α + β·bytes", head, rows, left=2)
