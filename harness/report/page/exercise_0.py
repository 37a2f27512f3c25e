"""The page of exercise 0: bandwidth and time of every collective against message size, α and β."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Summary
from harness.format.format import amount, duration, rate
from harness.report.elements import Figure, Section, table
from harness.report.page.inputs import Inputs, LinkFit
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
    rows = [[t.kind, t.scope, str(t.ranks), *_line(t), rate(_best(t))] for t in tested]
    head = (
        "collective",
        "scope",
        "ranks",
        "α",
        "1/β (alg GB/s)",
        "1/β (bus GB/s)",
        "best measured (bus GB/s)",
    )
    lead = (
        "Algorithm bandwidth (alg) is message size over time. Bus bandwidth (bus) is that times what each rank's link "
        "carries for it, as nccl-tests defines it. α is what an empty message costs, 1/β the bandwidth of an endless "
        "one."
    )
    if not all(t.line for t in tested):
        lead += " Where α and 1/β are missing, too few message sizes were measured for a line."
    return Section(
        "links", "Collectives measured", lead, figures, table("time = α + β·bytes", head, rows, left=2)
    )


def answer(inputs: Inputs) -> list[str]:
    """The verdict with its problems, and what was measured, in a sentence per scope; empty for another exercise."""
    said = inputs.verdict
    verdict = [said.verdict.removeprefix("VERDICT: ")] if said else []
    problems = [f"Problem: {f.message}." for f in said.findings if f.level == "problem"] if said else []
    return [*verdict, *problems, *_all_reduces(inputs)]


def _all_reduces(inputs: Inputs) -> list[str]:
    return [
        f"An all-reduce {_GROUPS.get(t.scope, 'of {} ranks').format(t.ranks)} {_speed(t)}."
        for t in inputs.tested
        if t.kind == "all_reduce"
    ]


def _speed(t: LinkFit) -> str:
    best = f"reaches {rate(_best(t))} GB/s of bus bandwidth"
    if t.line is None:
        return f"{best}; more message sizes would tell what an empty one costs"
    half = t.line.half_bytes()
    return f"starts in {duration(t.line.alpha_ns)} and {best}" + (
        f"; messages of about {amount(half)} reach half of an endless one's" if half is not None else ""
    )


def _best(t: LinkFit) -> float | None:
    return max((bandwidth for *_, bandwidth in t.points), default=None)


def _line(t: LinkFit) -> tuple[str, str, str]:
    """α, and 1/β in both definitions of a bandwidth."""
    if t.line is None:
        return "–", "–", "–"
    bus = t.line.endless_bus_gb_per_s(t.kind, t.ranks)
    return duration(t.line.alpha_ns), rate(t.line.endless_gb_per_s()), rate(bus)


def _scope(scope: str, tested: Sequence[LinkFit]) -> list[Figure]:
    size = plotly_json.axis("message size (bytes)", type="log", exponentformat="SI")
    bandwidth, time = [], []
    for i, t in enumerate(tested):
        color = COLLECTIVES[i % len(COLLECTIVES)]
        mark = {
            "mode": "lines+markers",
            "marker": {"color": color, "size": 7, "symbol": MARKS[i % len(MARKS)]},
        }
        sizes = [p[0] for p in t.points]
        bandwidth.append(plotly_json.line(t.kind, sizes, [p[2] for p in t.points], color) | mark)
        time.append(plotly_json.line(t.kind, sizes, [p[1] / 1e3 for p in t.points], color) | mark)
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
