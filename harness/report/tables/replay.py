"""The tables of the replay: the causes of lost time, and the step with one thing changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.analysis.labels import short_place
from harness.analysis.summary import Summary, TimeLost, WhatIf
from harness.common.display.format import duration, duration_range, percent
from harness.explain.commands import command_of_what_if
from harness.explain.findings import label_of, period_words
from harness.report.elements import CommandCell, Moment
from harness.report.tables.table import Column, File, TableOf, file_of, plain

LEAST_GAIN = 0.02  # of the step; page and terminal leave out smaller gains, files and JSON have them


class WhatIfRow(NamedTuple):
    """A what-if, and its command, where there is one."""

    what_if: WhatIf
    command: str | None


def all_changes(s: Summary) -> Sequence[WhatIfRow]:
    return [WhatIfRow(w, command_of_what_if(s, w)) for w in (s.replay.what_ifs if s.replay else [])]


def worthwhile_changes(s: Summary) -> Sequence[WhatIfRow]:
    """The what-ifs that page and terminal show, best first: those that gain at least `LEAST_GAIN` of the step."""
    return [row for row in all_changes(s) if row.what_if.gain >= LEAST_GAIN]


def first_moment(s: Summary) -> Moment | None:
    return _moment("see it in the timeline", s.findings[0]) if s.findings else None


def _moment(text: str, time_lost: TimeLost) -> Moment | None:
    return Moment(text, time_lost.at_rank, time_lost.at_ns) if time_lost.at_ns is not None else None


def _kind(x: WhatIf) -> str:
    if x.bound:
        return "a bound"
    if x.ranged:
        return "a range"
    return "upper limit" if x.at_most else "prediction"


LOST = TableOf[TimeLost](
    caption="Causes of lost time: what a step would save without each cause alone. They do not add up",
    rows=lambda s: s.findings,
    columns=(
        Column("cause", lambda x: _moment(label_of(x), x) or label_of(x)),
        Column("ranks", lambda x: ", ".join("?" if rank is None else str(rank) for rank in x.ranks)),
        Column("phase", "phase"),
        Column("the host", "what"),
        Column("where", lambda x: "–" if x.where is None else short_place(x.where)),
        Column("lost per step", "lost_ns"),
        Column("95 % interval", lambda x: duration_range(x.low_ns, x.high_ns)),
        Column("of the step", "share"),
        Column("period", lambda x: period_words(x.every) or "none"),
        Column("seen", "evidence"),
    ),
    left=5,
    section="help",
    spare=("seen", "period", "where", "the host"),
    file=file_of("findings"),
)

WHAT_IFS = TableOf[WhatIfRow](
    caption=f"The mean step with one thing changed. Gains below {100 * LEAST_GAIN:g} % of the step are left out",
    rows=worthwhile_changes,
    columns=(
        Column("change", lambda x: x.what_if.meaning),
        Column("step", lambda x: duration(x.what_if.step_ns)),
        Column("95 % interval", lambda x: duration_range(x.what_if.low_ns, x.what_if.high_ns)),
        Column("gain", lambda x: percent(x.what_if.gain)),
        Column("kind", lambda x: _kind(x.what_if)),
        Column(CommandCell("command"), lambda x: CommandCell(x.command or "–")),
    ),
    section="help",
    page_order=1,
    spare=("command",),
    file=File("what_ifs", lambda s: map(plain, s.replay.what_ifs if s.replay else [])),
)


TABLES: tuple[TableOf[Any], ...] = (LOST, WHAT_IFS)
