"""The page of exercise 0: bandwidth and time of every collective against message size, α and β."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Summary
from harness.format.format import amount, duration, rate
from harness.report.elements import Figure, Section, table
from harness.report.exercise_0.results import Result
from harness.report.page.inputs import Inputs
from harness.report.palette import COLLECTIVES, MARKS
from harness.report.plots import plotly_json

_WORDS = {"intra": "inside a node", "inter": "between nodes", "world": "among all ranks"}
_GROUPS = {
    "intra": "of {} ranks inside a node",
    "inter": "of {} ranks, one on each node,",
    "world": "of all {} ranks",
}


def tests_section(s: Summary, inputs: Inputs) -> Section:
    """Curves per scope; empty for any other exercise."""
    tested = inputs.tested
    if not tested:
        return Section("links", "Collectives measured")
    scopes = list(dict.fromkeys(t.scope for t in tested))
    figures = [f for scope in scopes for f in _scope(scope, [t for t in tested if t.scope == scope])]
    rows = [[t.collective, t.scope, str(t.ranks), *_fit_cells(t), rate(_best(t))] for t in tested]
    bandwidths = ("1/β (alg GB/s)", "1/β (bus GB/s)", "best measured (bus GB/s)")
    tables = table("time = α + β·bytes", ("collective", "scope", "ranks", "α", *bandwidths), rows, left=2)
    lead = (
        "Algorithm bandwidth (alg) is message size over time. Bus bandwidth (bus) is scaled to the bytes that each "
        "link carries, as nccl-tests defines it. α is the time of an empty message. 1/β is the bandwidth of an "
        "infinitely long message."
    )
    if not all(t.fit for t in tested):
        lead += " If α and 1/β are missing, too few message sizes were measured for a line."
    return Section("links", "Collectives measured", lead, figures, tables)


def answer_sentences(inputs: Inputs) -> list[str]:
    """The verdict with its problems, and what was measured, in a sentence per scope; empty for another exercise."""
    verdict = inputs.verdict
    sentences = [verdict.verdict.removeprefix("VERDICT: ")] if verdict else []
    sentences += (
        [f"Problem: {f.message}." for f in verdict.findings if f.level == "problem"] if verdict else []
    )
    return sentences + [
        f"An all-reduce {_GROUPS.get(t.scope, 'of {} ranks').format(t.ranks)} {_speed(t)}."
        for t in inputs.tested
        if t.collective == "all_reduce"
    ]


def _speed(t: Result) -> str:
    best = f"reaches {rate(_best(t))} GB/s of bus bandwidth"
    if t.fit is None:
        return f"{best}; α is not known, because too few message sizes were measured"
    half = t.fit.half_bytes()
    return f"starts in {duration(t.fit.alpha_ns)} and {best}" + (
        f"; messages of about {amount(half)} reach half of the highest bandwidth" if half is not None else ""
    )


def _best(t: Result) -> float:
    return max(p.busbw_gbytes_per_s for p in t.points)


def _fit_cells(t: Result) -> tuple[str, str, str]:
    """α, and 1/β in both definitions of a bandwidth."""
    if t.fit is None:
        return "–", "–", "–"
    bus = t.fit.endless_bus_gb_per_s(t.collective, t.ranks)
    return duration(t.fit.alpha_ns), rate(t.fit.endless_gb_per_s()), rate(bus)


def _scope(scope: str, tested: Sequence[Result]) -> list[Figure]:
    size = plotly_json.axis("message size (bytes)", type="log", exponentformat="SI")
    bandwidth, time = [], []
    for i, t in enumerate(tested):
        color = COLLECTIVES[i % len(COLLECTIVES)]
        marker = {"color": color, "size": 7, "symbol": MARKS[i % len(MARKS)]}
        mark = {"mode": "lines+markers", "marker": marker}
        sizes = [p.message_bytes for p in t.points]
        busbw, microseconds = [p.busbw_gbytes_per_s for p in t.points], [p.time_ns / 1e3 for p in t.points]
        bandwidth.append(plotly_json.line(t.collective, sizes, busbw, color) | mark)
        time.append(plotly_json.line(t.collective, sizes, microseconds, color) | mark)
    where = _WORDS.get(scope, scope)
    return [
        Figure(
            f"bus-bandwidth-{scope}",
            f"Bus bandwidth of each collective {where} against message size.",
            bandwidth,
            plotly_json.layout(size, plotly_json.axis("bus bandwidth (GB/s)", rangemode="tozero")),
            340,
        ),
        Figure(
            f"message-time-{scope}",
            f"Time of each collective {where} against message size, both axes logarithmic.",
            time,
            plotly_json.layout(size, plotly_json.axis("time (µs)", type="log")),
            340,
        ),
    ]
