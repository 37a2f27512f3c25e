"""The table of ranks: those that ended badly or are quiet, then the slowest first. Knows no terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from harness.common.printable import printable
from harness.format.format import amount, cut, duration
from harness.live.model import Live, Rank
from harness.live.silent import SILENT_S
from harness.live.text import span

QUIET_S = 5.0  # a shorter time without a sign of life is not shown
_MOST_NODE = 24  # characters


class Column(NamedTuple):
    """A column: its heading, its cell, and the least width of a screen that has it."""

    head: str
    cell: Callable[[Rank, Live], str]
    least_width: int = 0
    right: bool = True
    takes_rest: bool = False


def _place(rank: Rank, _live: Live) -> str:
    return rank.place.short if rank.place else "–"


def _phase(rank: Rank, _live: Live) -> str:
    if rank.gone is not None:
        return "ended" if rank.gone.ended else "gone"
    return "starts" if rank.beat is None else rank.phase or "–"


def _quiet(rank: Rank, live: Live) -> str:
    """How long it is quiet, makes no progress, or its node does not report."""
    if rank.gone is not None:
        return ""
    if (age_s := live.nodes[rank.node].age_s(live.now_ns)) > SILENT_S and not live.nodes[rank.node].ended:
        return f"no report {span(age_s)}"
    if rank.quiet_s() > QUIET_S:
        return span(rank.quiet_s())
    return f"no progress {span(rank.idle_s())}" if rank.is_idle() else ""


def _us(us: float | None) -> str:
    return duration(None if us is None else us * 1e3)


COLUMNS = [
    Column("rank", lambda rank, _: str(rank.rank)),
    Column("node", lambda rank, _: cut(printable(rank.host or rank.node), _MOST_NODE), 75, right=False),
    Column("step", lambda rank, _: "–" if rank.step is None else f"{rank.step:,}"),
    Column("own time", lambda rank, _: _us(rank.recent_own_us)),
    Column("step time", lambda rank, _: _us(rank.recent_us), 70),
    Column("data wait", lambda rank, _: _us(rank.recent_data_us), 110),
    Column("phase", _phase, right=False),
    Column("memory", lambda rank, _: amount(rank.beat.memory_mib << 20) if rank.beat else "–", 90),
    Column("use", lambda rank, _: _percent(rank), 90),
    Column("place", _place, right=False, takes_rest=True),
    Column("quiet", _quiet),
]


def _percent(rank: Rank) -> str:
    return f"{rank.beat.use_percent} %" if rank.beat and rank.beat.use_percent is not None else "–"


def in_order(live: Live) -> list[Rank]:
    """All ranks: gone without an end, then quiet, then without progress, then by the time of their steps."""
    return sorted(
        live.slowest_first(),
        key=lambda rank: (rank.gone is None or rank.ended, rank.quiet_s() <= QUIET_S, not rank.is_idle()),
    )


def table_of(ranks: list[Rank], live: Live, width: int) -> Table:
    """A line for each of these ranks, as wide as the screen."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="dim")
    columns = [column for column in COLUMNS if width >= column.least_width]
    cells = [[printable(column.cell(rank, live)) for column in columns] for rank in ranks]
    for number, column in enumerate(columns):
        longest = max(map(len, [column.head, *(row[number] for row in cells)]))
        table.add_column(
            column.head,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if column.takes_rest else None,
            min_width=None if column.takes_rest else longest,
        )
    for rank, row in zip(ranks, cells, strict=True):
        table.add_row(*map(Text, row), style=_style(rank, live))
    return table


def _style(rank: Rank, live: Live) -> str:
    if rank.gone is not None:
        return "dim" if rank.ended else "red"
    return "yellow" if _quiet(rank, live) else ""
