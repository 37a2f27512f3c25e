"""The tables about collectives, messages and clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.analysis import summary
from harness.analysis.summary import Summary
from harness.common.display.format import amount, cut, duration, per_step, rate
from harness.report.tables.table import Column, File, TableOf, file_of, plain

SHOWN = 30  # of collectives, on the page
_IN_TERMINAL = 12
_SIZES = 60
TRAFFIC = TableOf[summary.Traffic](
    caption="Messages of a step, by size",
    rows=lambda s: sorted(s.traffic, key=lambda t: -t.step_duration_ns)[:_SIZES],
    columns=(
        Column("rank", "rank"),
        Column("collective", "kind"),
        Column("phase", "phase"),
        Column("bytes", "bytes"),
        Column("calls per step", lambda t: per_step(t.count_per_step)),
        Column("time per step", "step_duration_ns"),
        Column("exposed", "step_exposed_ns"),
    ),
    left=3,
    in_terminal=lambda s: False,
    file=file_of("traffic"),
)
STRAGGLERS = TableOf[summary.Straggler](
    caption="Ranks that the others wait for",
    rows=lambda s: s.stragglers,
    columns=(
        Column("rank", lambda x: f"rank {x.rank}"),
        Column("arrives last", lambda x: f"{x.last_arrivals:,} of {x.collectives:,}"),
        Column("late by, on average", "mean_lateness_ns"),
    ),
    section="collectives",
    file=File("stragglers", lambda s: map(plain, s.stragglers)),
)
CLOCKS = TableOf[summary.Clock](
    caption="Clocks, aligned at the ends of shared collectives",
    rows=lambda s: [c for c in s.clocks if c.collectives],
    columns=(
        Column("host", "host"),
        Column("ahead by", "offset_ns"),
        Column("residual", "residual_ns"),
        Column("collectives", "collectives"),
    ),
    section="collectives",
    file=file_of("clocks"),
)


def _cut_each(groups: Sequence[str], width: int) -> list[str]:
    return [cut(group, width) for group in groups]


def calls(c: summary.Collective) -> str:
    """The calls of one rank; from fewest to most where ranks differ.

    >>> known = {"kind": "all_reduce", "duration_ns": 1, "mean_ns": 1, "count": 3, "ranks": 2}
    >>> calls(summary.Collective(**known, min_rank_count=3, max_rank_count=3))
    '3'
    >>> calls(summary.Collective(**known, min_rank_count=1, max_rank_count=3))
    '1 to 3'
    """
    if c.min_rank_count is None or c.max_rank_count is None:
        return f"{c.count:,}"
    fewest, most = f"{c.min_rank_count:,}", f"{c.max_rank_count:,}"
    return most if fewest == most else f"{fewest} to {most}"


def _last(c: summary.Collective) -> str:
    most = sorted(c.last_arrivals.items(), key=lambda x: -x[1])[:3]
    return ", ".join(f"rank {rank} {count}×" for rank, count in most) or "–"


COLLECTIVES = TableOf[summary.Collective](
    caption="Collectives in the window: calls of one rank, mean time of one call (waiting: beyond the fastest rank)",
    rows=lambda s: s.collectives[:SHOWN],
    columns=(
        Column("collective", "kind"),
        Column("group", "group", _cut_each, page=40, terminal=16),
        Column("type", "dtype"),
        Column("ranks", "group_size"),
        Column("calls", calls),
        Column("bytes each", lambda c: amount(c.bytes / c.count) if c.bytes is not None and c.count else "–"),
        Column("mean", "mean_ns"),
        Column("waiting", "waiting_fraction"),
        Column("alg GB/s", "algorithm_bandwidth_gb_per_s"),
        Column("bus GB/s", "bus_bandwidth_gb_per_s"),
        Column("start skew", "mean_start_skew_ns"),
        Column("arrives last", _last),
    ),
    left=3,
    figure="collectives-time",
    spare=("arrives last", "start skew", "alg GB/s", "type", "group", "ranks"),
    most=_IN_TERMINAL,
    file=file_of("collectives"),
)


def _counted_steps(s: Summary) -> int:
    return sum(len(r.durations_ns) for r in s.steps.per_rank)


def _issued(s: Summary) -> list[tuple[summary.CollectivePhase, int, bool]]:
    """Each with the divisor for one rank in one step, and whether there are steps; else the divisor for one rank."""
    steps = _counted_steps(s)
    return [(c, steps or len(s.steps.per_rank) or 1, bool(steps)) for c in s.collective_phases]


ISSUED = TableOf[tuple[summary.CollectivePhase, int, bool]](
    caption=lambda s: (
        "Collectives by the phase of training that issued them, "
        + ("per rank and step" if _counted_steps(s) else "per rank, in the window")
    ),
    rows=_issued,
    columns=(
        Column("collective", lambda x: x[0].kind),
        Column("issued in", lambda x: x[0].phase),
        Column("calls", lambda x: (per_step if x[2] else rate)(x[0].count / x[1])),
        Column("bytes", lambda x: _size(x[0], x[1])),
        Column("time", lambda x: duration(x[0].duration_ns / x[1])),
    ),
    left=2,
    section="collectives",
    file=file_of("collective_phases"),
)
LONG_MESSAGES = TableOf[summary.LongMessage](
    caption="Collectives that are exposed longest, by their place in the program",
    rows=lambda s: sorted(s.long_messages, key=lambda m: -m.exposed_ns)[:SHOWN],
    columns=(
        Column("rank", "rank"),
        Column("collective", "kind"),
        Column(
            "inside", lambda m: m.range or (m.where.function if m.where else m.phase), _cut_each, page=40, terminal=24
        ),
        Column("bytes", "bytes"),
        Column("ranks", "group_size"),
        Column("calls", "count"),
        Column("exposed", "exposed_ns"),
        Column("transfer", "transfer_ns"),
        Column("waiting", "waiting_ns"),
        Column("start skew", "mean_start_skew_ns"),
    ),
    left=3,
    section="collectives",
    in_terminal=lambda s: False,
    file=file_of("long_messages"),
)


def _size(c: summary.CollectivePhase, each: int) -> str:
    """Bytes; a lower bound (≥) where the size of some calls was not recorded."""
    if c.bytes is not None:
        return amount(c.bytes / each)
    return f"≥ {amount(c.least_bytes / each)}" if c.least_bytes else "–"


def time_word(result: summary.MessageSize | summary.CollectiveFit) -> str:
    """What the time of a message contains: its transfer, or waiting too where ranks could not be matched."""
    return "time, waiting included" if result.includes_waiting else "transfer"


MESSAGE_SIZES = TableOf[summary.MessageSize](
    caption="Message sizes",
    rows=lambda s: sorted(s.message_sizes, key=lambda m: (m.kind, m.bytes))[:_SIZES],
    columns=(
        Column("collective", "kind"),
        Column("ranks", "group_size"),
        Column("bytes", "bytes"),
        Column("count", "count"),
        Column("median", "median_transfer_ns"),
        Column("of what", time_word),
    ),
    figure="transfer-times",
    in_terminal=lambda s: False,
    file=file_of("message_sizes"),
)
FITS = TableOf[summary.CollectiveFit](
    caption="This run's own messages: time = α + β·bytes",
    rows=lambda s: s.collective_fits,
    columns=(
        Column("collective", "kind"),
        Column("ranks", "group_size"),
        Column("sizes", lambda f: f"{f.points}"),
        Column("α", "alpha_ns"),
        Column("1/β (alg)", lambda f: inverse(f.beta_ns_per_byte)),
        Column("R²", lambda f: f"{f.r_squared:.3f}"),
        Column("of what", time_word),
    ),
    section="collectives",
    page_order=1,
    in_terminal=lambda s: any(f.alpha_ns is not None for f in s.collective_fits),
    file=file_of("collective_fits"),
)


def inverse(beta_ns_per_byte: float | None) -> str:
    return f"{rate(1 / beta_ns_per_byte)} GB/s" if beta_ns_per_byte else "–"


TABLES: tuple[TableOf[Any], ...] = (
    COLLECTIVES,
    ISSUED,
    TRAFFIC,
    LONG_MESSAGES,
    MESSAGE_SIZES,
    FITS,
    STRAGGLERS,
    CLOCKS,
)
