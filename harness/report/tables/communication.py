"""Tables about collectives, each declared once for the terminal and the page. Every count is of one rank, and every
mean is of one rank in one call: where ranks did unlike things, the cell says from what to what."""

from __future__ import annotations

from harness.analysis.summary import Collective, CollectiveFit, CollectivePhase, MessageSize, Summary
from harness.format.format import amount, cut, duration, per_step, percent, rate
from harness.report.elements import Table

_SIZES = 60


def collective_table(s: Summary, most: int, width: int) -> Table:
    """Per kind, group and element type."""
    rows = [
        [
            c.kind,
            cut(c.group or "–", width),
            c.dtype or "–",
            str(c.group_size or "–"),
            calls(c),
            amount(c.bytes / c.count) if c.bytes is not None and c.count else "–",
            duration(c.mean_ns),
            percent(c.waiting_fraction),
            rate(c.algorithm_bandwidth_gb_per_s),
            rate(c.bus_bandwidth_gb_per_s),
            duration(c.mean_start_skew_ns),
            _last(c),
        ]
        for c in s.collectives[:most]
    ]
    head = ("collective", "group", "type", "ranks", "calls", "bytes each", "mean", "waiting", "alg GB/s", "bus GB/s",
            "start skew", "arrives last")  # fmt: skip
    caption = "Collectives in the window: calls of one rank, mean time of one call (waiting: beyond the fastest rank)"
    return Table(caption, head, rows, left=3)


def calls(c: Collective) -> str:
    """How often one rank called it; from fewest to most where ranks disagree.

    >>> known = {"kind": "all_reduce", "duration_ns": 1, "mean_ns": 1, "count": 3, "ranks": 2}
    >>> calls(Collective(**known, min_rank_count=3, max_rank_count=3))
    '3'
    >>> calls(Collective(**known, min_rank_count=1, max_rank_count=3))
    '1 to 3'
    """
    if c.min_rank_count is None or c.max_rank_count is None:
        return f"{c.count:,}"
    fewest, most = f"{c.min_rank_count:,}", f"{c.max_rank_count:,}"
    return most if fewest == most else f"{fewest} to {most}"


def _last(c: Collective) -> str:
    most = sorted(c.last_arrivals.items(), key=lambda x: -x[1])[:3]
    return ", ".join(f"rank {rank} {count}×" for rank, count in most) or "–"


def issued_table(s: Summary) -> Table:
    """Per kind and phase, on the same footing as a comparison: of one rank in one step, the mean of all."""
    steps = sum(len(r.durations_ns) for r in s.steps.per_rank)
    each = steps or len(s.steps.per_rank) or 1
    rows = [
        [
            c.kind,
            c.phase,
            per_step(c.count / each) if steps else rate(c.count / each),
            _size(c, each),
            duration(c.duration_ns / each),
        ]
        for c in s.collective_phases
    ]
    what = "per rank and step" if steps else "per rank, in the window"
    head = ("collective", "issued in", "calls", "bytes", "time")
    return Table(f"Collectives by the phase of training that issued them, {what}", head, rows, left=2)


def _size(c: CollectivePhase, each: int) -> str:
    """Bytes; at least so many where the size of some calls was not recorded."""
    if c.bytes is not None:
        return amount(c.bytes / each)
    return f"≥ {amount(c.least_bytes / each)}" if c.least_bytes else "–"


def time_word(row: MessageSize | CollectiveFit) -> str:
    """What the time of a message is: its transfer, or more where ranks could not be matched."""
    return "time, waiting included" if row.includes_waiting else "transfer"


def size_table(s: Summary) -> Table:
    """Messages by their size."""
    rows = [
        [m.kind, str(m.group_size or "–"), amount(m.bytes), f"{m.count:,}", duration(m.median_transfer_ns),
         time_word(m)]
        for m in sorted(s.message_sizes, key=lambda m: (m.kind, m.bytes))[:_SIZES]
    ]  # fmt: skip
    return Table("Message sizes", ("collective", "ranks", "bytes", "count", "median", "of what"), rows)


def fit_table(s: Summary) -> Table:
    """α and β of the run's own messages; without them where the points do not lie on a line."""
    rows = [
        [f.kind, str(f.group_size or "–"), f"{f.points}", duration(f.alpha_ns), inverse(f.beta_ns_per_byte),
         f"{f.r_squared:.3f}", time_word(f)]
        for f in s.collective_fits
    ]  # fmt: skip
    head = ("collective", "ranks", "sizes", "α", "1/β (alg)", "R²", "of what")
    return Table("This run's own messages: time = α + β·bytes", head, rows)


def inverse(beta_ns_per_byte: float | None) -> str:
    """A time per byte as a bandwidth."""
    return f"{rate(1 / beta_ns_per_byte)} GB/s" if beta_ns_per_byte else "–"


def straggler_table(s: Summary) -> Table:
    """Ranks that the others wait for."""
    rows = [
        [f"rank {x.rank}", f"{x.last_arrivals:,} of {x.collectives:,}", duration(x.mean_lateness_ns)]
        for x in s.stragglers
    ]
    return Table("Ranks that the others wait for", ("rank", "arrives last", "late by, on average"), rows)


def clock_table(s: Summary) -> Table:
    """How clocks were aligned; empty where there is only one."""
    rows = [
        [c.host, duration(c.offset_ns), duration(c.residual_ns), f"{c.collectives:,}"]
        for c in s.clocks
        if c.collectives
    ]
    head = ("host", "ahead by", "residual", "collectives")
    return Table("Clocks, aligned at the ends of shared collectives", head, rows)
