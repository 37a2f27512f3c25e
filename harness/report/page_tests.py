"""The page of exercise 0: bandwidth and time of every collective against message size, α and β."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import Summary
from harness.report import plots
from harness.report.numbers import amount, duration, rate
from harness.report.page_inputs import Inputs, LinkFit
from harness.report.page_parts import Figure, Section, table
from harness.report.plots_palette import COLLECTIVES, MARKS

_WORDS = {"intra": "inside a node", "inter": "between nodes", "world": "among all ranks"}


def tests_section(s: Summary, inputs: Inputs) -> Section:
    """Curves per scope; empty for any other exercise."""
    tested = inputs.tested
    if not tested:
        return Section("links", "Collectives measured")
    scopes = list(dict.fromkeys(t.scope for t in tested))
    figures = [f for scope in scopes for f in _scope(scope, [t for t in tested if t.scope == scope])]
    rows = [
        [t.kind, t.scope, str(t.ranks), duration(t.alpha_ns), _bandwidth(t), rate(_best(t))] for t in tested
    ]
    head = ("collective", "scope", "ranks", "α", "1/β (GB/s)", "best bus GB/s")
    lead = (
        "Bus bandwidth as nccl-tests defines it; α is what an empty message costs, 1/β the bandwidth of an "
        "endless one."
    )
    return Section(
        "links", "Collectives measured", lead, figures, table("time = α + β·bytes", head, rows, left=2)
    )


def answer(inputs: Inputs) -> list[str]:
    """What was measured, in a sentence per scope; empty when nothing was."""
    return [
        f"An all-reduce of {t.ranks} ranks {_WORDS.get(t.scope, t.scope)} starts in {duration(t.alpha_ns)} and reaches "
        f"{rate(_best(t))} GB/s of bus bandwidth; half of that needs messages of about {amount(_half(t))}."
        for t in inputs.tested
        if t.kind == "all_reduce"
    ]


def _best(t: LinkFit) -> float | None:
    return max((bandwidth for *_, bandwidth in t.points), default=None)


def _bandwidth(t: LinkFit) -> str:
    return rate(1 / t.beta_ns_per_byte) if t.beta_ns_per_byte > 0 else "–"


def _half(t: LinkFit) -> float | None:
    """The size at which the line α + β·bytes reaches half of its endless bandwidth: α/β."""
    return t.alpha_ns / t.beta_ns_per_byte if t.beta_ns_per_byte > 0 else None


def _scope(scope: str, tested: Sequence[LinkFit]) -> list[Figure]:
    size = plots.axis("message size (bytes)", type="log", exponentformat="SI")
    bandwidth, time = [], []
    for i, t in enumerate(tested):
        color = COLLECTIVES[i % len(COLLECTIVES)]
        mark = {
            "mode": "lines+markers",
            "marker": {"color": color, "size": 7, "symbol": MARKS[i % len(MARKS)]},
        }
        sizes = [p[0] for p in t.points]
        bandwidth.append(plots.line(t.kind, sizes, [p[2] for p in t.points], color) | mark)
        time.append(plots.line(t.kind, sizes, [p[1] / 1e3 for p in t.points], color) | mark)
    where = _WORDS.get(scope, scope)
    return [
        Figure(
            f"bus-bandwidth-{scope}",
            f"Bus bandwidth of each collective {where} against message size.",
            bandwidth,
            plots.layout(size, plots.axis("bus bandwidth (GB/s)", rangemode="tozero")),
            340,
        ),
        Figure(
            f"message-time-{scope}",
            f"Time of each collective {where} against message size, both axes logarithmic.",
            time,
            plots.layout(size, plots.axis("time (µs)", type="log")),
            340,
        ),
    ]
