"""The table of pacing, and who is behind in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.analysis.summary import PaceOutlier, PacePlace, Pacing, Summary
from harness.format.format import duration, percent
from harness.report.tables.table import Column, File, TableOf, plain

_NAMED = 3  # outliers with a sentence of their own
_SHOWN = 8  # places in the terminal
_MEASURES = {"step": "behind the median step", "own work": "behind the median in its own work"}


def pace_sentences(s: Summary) -> list[str]:
    """Who is behind, the farthest first; of many the first few and how many more there are."""
    pace = s.pacing
    if pace is None or not pace.outliers:
        return []
    texts = [f"{who(x)} is {percent(x.behind_share)} {_MEASURES[x.measure]} in {x.steps_behind} of {x.steps} steps."
             for x in pace.outliers[:_NAMED]]  # fmt: skip
    more = pace.outlier_count - len(texts)
    if more <= 0:
        return texts
    on = Counter(x.switch for x in pace.outliers if x.switch)
    most = f"; {on.most_common(1)[0][1]} of all are on switch {on.most_common(1)[0][0]}" if on else ""
    places = {x.place for x in pace.outliers}
    what = f"{places.pop() if len(places) == 1 else 'place'}{'s are' if more > 1 else ' is'}"
    return [*texts, f"{more} more {what} behind in the same way{most}."]


def who(x: PaceOutlier) -> str:
    """The place with what it hangs on: `node0412 (switch leaf07, slowest rank 1648)`, or `rank 5 (node1)`."""
    rank = "a process without a rank" if x.rank is None else f"rank {x.rank}"
    slowest = "" if x.rank is None else f"slowest {rank}"
    name, other = (x.node or "", slowest) if x.place == "node" else (rank, x.node)
    inside = ", ".join(filter(None, (x.switch and f"switch {x.switch}", other)))
    return f"{name} ({inside})" if inside else name


def how_grouped(pace: Pacing) -> str:
    """What the rows of the picture stand below, in words."""
    if pace.switches_count:
        return f"by the switch that Slurm's topology names ({pace.switches_count}), and by node"
    nodes = "by node" if pace.nodes_count else "in the order of ranks: no trace names its node"
    return f"{nodes}; Slurm named no switches" if pace.nodes_count > 1 else nodes


def _places(s: Summary) -> Sequence[PacePlace]:
    """The farthest behind first."""
    if s.pacing is None:
        return ()
    return sorted(s.pacing.places, key=lambda x: -max(x.step_share, x.own_share or 0.0))


PACING = TableOf[PacePlace](
    caption=lambda s: "Pacing: lag behind the first rank, and time above the median step",
    rows=_places,
    columns=(
        Column("node", lambda x: x.node or "–"),
        Column("switch", lambda x: x.switch or "–"),
        Column("rank", lambda x: "–" if x.rank is None else str(x.rank)),
        Column("step", lambda x: _signed(x.step_share)),
        Column("own work", lambda x: _signed(x.own_share)),
        Column("lag at the first step", lambda x: duration(x.first_lag_ns)),
        Column("lag at the last step", lambda x: duration(x.lag_ns)),
        Column("variation", lambda x: percent(x.variation_fraction)),
    ),
    left=2,
    section="steps",
    page_order=2,
    topic="pacing",
    in_terminal=lambda s: s.pacing is not None and len(s.pacing.places) > 1,
    spare=("lag at the first step", "variation"),
    most=_SHOWN,
    rest="places",
    advice=pace_sentences,
    file=File("pacing", lambda s: map(plain, s.pacing.places) if s.pacing else ()),
)


def _signed(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"
