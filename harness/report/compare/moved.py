"""The largest changes between two runs, as tables; their pacing and networks side by side, in the same colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.compare import Comparison
from harness.analysis.moved import MovedStatistic, What
from harness.analysis.summary import Summary
from harness.format.format import duration, per_step, short
from harness.report.compare.tables import letters
from harness.report.elements import Section, Table
from harness.report.plots import network, pacing
from harness.report.tables.pacing import pace_sentences

_IN_TERMINAL = 5
_WIDTH = 90
_KINDS: tuple[tuple[What, str, str], ...] = (
    ("node", "Nodes of both runs: median step", "ranks"),
    ("range", "Ranges: time on the host, per rank and step", "calls"),
    ("kernel", "Kernels: time on the device, per rank and step", "calls"),
)


def moved_section(pairs: Sequence[Comparison]) -> Section:
    """Nodes, ranges and kernels of each pair, a table each."""
    others = zip(letters(pairs)[1:], pairs, strict=True)
    tables = [table for other, pair in others for table in _tables(pair, other)]
    lead = (
        "The largest changes in milliseconds are first. Ranges and kernels that changed by less than 0.5 % of a's step "
        "are left out."
    )
    return Section("moved", "Largest changes", lead if tables else "", tables=tables)


def _tables(pair: Comparison, other: str) -> list[Table]:
    found = []
    for what, caption, calls in _KINDS:
        rows = [x for x in pair.moved if x.what == what]
        if rows:
            head = (what, "a", other, f"{other} − a", f"{calls} a", f"{calls} {other}")
            found.append(Table(f"{caption}, {other} against a", head, _rows(rows)))
    return found


def _rows(rows: Sequence[MovedStatistic], width: int = _WIDTH) -> list[tuple[str, ...]]:
    names = short([x.name for x in rows], width)
    return [
        (name, duration(x.a_ns), duration(x.b_ns), signed(x.by_ns), per_step(x.a_calls), per_step(x.b_calls))
        for name, x in zip(names, rows, strict=True)
    ]


def signed(ns: float) -> str:
    """A difference of durations with its sign.

    >>> signed(1_500_000), signed(-20_000), signed(0)
    ('+1.50 ms', '-20.0 µs', '0 ns')
    """
    return f"+{duration(ns)}" if ns > 0 else duration(ns)


def moved_in_short(pair: Comparison, other: str) -> Table:
    """The ranges and kernels with the largest changes."""
    rows = sorted((x for x in pair.moved if x.what != "node"), key=lambda x: -abs(x.by_ns))[:_IN_TERMINAL]
    cells = [(x.what, *row[:4]) for x, row in zip(rows, _rows(rows, 60), strict=True)]
    return Table("", ("", "", "a", other, f"{other} − a"), cells)


def pacing_section(labels: Sequence[str], summaries: Sequence[Summary]) -> Section:
    """The plot of each run, two beside each other; and which ranks or nodes are slower."""
    known = [
        (label, letter, s, s.pacing)
        for label, letter, s in zip(labels, map(str, range(len(labels))), summaries, strict=True)
        if s.pacing is not None and s.pacing.heat is not None
    ]
    if not known:
        return Section("pacing", "Pacing")
    ends = pacing.scale_of([pace for *_, pace in known])
    drawn = [(pacing.pace_figure(pace, f"pacing-{number}", label, ends)) for label, number, _, pace in known]
    figures = [replace(figure, wide=len(known) == 1) for figure in drawn if figure is not None]
    behind = [f"{label}: {text}" for label, _, s, _ in known for text in pace_sentences(s)]
    lead = " ".join(["All plots have the same colour scale.", *behind])
    return Section("pacing", "Pacing", lead, figures)


def network_section(labels: Sequence[str], summaries: Sequence[Summary]) -> Section:
    """The network of each run's nodes over time, two beside each other."""
    top = network.scale_of(summaries)
    drawn = [
        network.network_figure(s, f"network-{number}", label, top)
        for number, (label, s) in enumerate(zip(labels, summaries, strict=True))
    ]
    figures = [figure for figure in drawn if figure is not None]
    lead = "All plots have the same colour scale. Time 0 is the first sample of each run." if figures else ""
    return Section("network", "Network", lead, [replace(f, wide=len(figures) == 1) for f in figures])
