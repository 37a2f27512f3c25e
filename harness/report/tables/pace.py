"""The tables about changes of pace and about ranks and nodes that are behind, and the same in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.analysis import summary
from harness.analysis.pace import DetectedChange
from harness.analysis.slowest_rank import Slowest
from harness.analysis.summary import Summary
from harness.common.display.format import percent
from harness.explain.pace import change_sentence, returns, slowest_sentence, worth_telling
from harness.report.tables.table import Column, File, TableOf, file_of, plain

_FEW = 4  # changes of pace with a sentence of their own
_RANKS = 8  # of a change, by their numbers
_NAMED_OUTLIERS = 3  # outliers with a sentence of their own
_PLACES = 8  # in the terminal
_MEASURES = {"step": "behind the median step", "own work": "behind the median in its own work"}


def pace_change_sentences(s: Summary) -> list[str]:
    """What changed when, and which rank the others wait for; empty if the pace is steady and no rank stands out."""
    changes = [_change(each) for each in s.pace_changes]
    told = [
        " ".join(filter(None, (change_sentence(change, each.phase), _shown(each))))
        for before, change, each in zip([None, *changes], changes, s.pace_changes, strict=False)
        if before is None or not returns(before, change)
    ]
    more = [f"{len(told) - _FEW} more changes of pace are in the table."] if len(told) > _FEW else []
    return [*told[:_FEW], *more, *_slowest(s, changes)]


def _shown(change: summary.PaceChange) -> str:
    return f"({change.evidence[:1].upper()}{change.evidence[1:]}.)" if change.evidence else ""


def _slowest(s: Summary, changes: Sequence[DetectedChange]) -> list[str]:
    found = s.slowest_rank
    if found is None or found.rank is None:
        return []
    slowest = Slowest(found.kind, found.rank, found.share, found.costs_ns)
    return [slowest_sentence(slowest, found.step_ns)] if worth_telling(slowest, changes) else []


def _change(pace_change: summary.PaceChange) -> DetectedChange:
    return DetectedChange(
        pace_change.step,
        pace_change.before_ns,
        pace_change.after_ns,
        pace_change.ratio,
        tuple(pace_change.ranks),
        pace_change.named,
        pace_change.last_step,
    )


def _who(pace_change: summary.PaceChange) -> str:
    if not pace_change.named:
        return "not known"
    more = f" and {len(pace_change.ranks) - _RANKS} more" if len(pace_change.ranks) > _RANKS else ""
    return ", ".join(map(str, pace_change.ranks[:_RANKS])) + more


PACE_CHANGES = TableOf[summary.PaceChange](
    caption="Changes of pace of the whole training, by its own clock",
    rows=lambda s: s.pace_changes,
    columns=(
        Column("step", "step"),
        Column("until", lambda x: "the end" if x.last_step is None else str(x.last_step)),
        Column("before", "before_ns"),
        Column("after", "after_ns"),
        Column("change", lambda x: f"{'+' if x.ratio >= 1 else '−'}{percent(abs(x.ratio - 1))}"),
        Column("ranks", _who),
        Column("phase", "phase"),
    ),
    section="steps",
    spare=("until",),
    advice=pace_change_sentences,
    file=file_of("pace_changes"),
)


def pace_sentences(s: Summary) -> list[str]:
    """Who is behind, the farthest first; of many the first few and how many more there are."""
    pace = s.pacing
    if pace is None or not pace.outliers:
        return []
    texts = [f"{who(x)} is {percent(x.behind_share)} {_MEASURES[x.measure]} in {x.steps_behind} of {x.steps} steps."
             for x in pace.outliers[:_NAMED_OUTLIERS]]  # fmt: skip
    more = pace.outlier_count - len(texts)
    if more <= 0:
        return texts
    on = Counter(x.switch for x in pace.outliers if x.switch)
    most = f"; {on.most_common(1)[0][1]} of all are on switch {on.most_common(1)[0][0]}" if on else ""
    places = {x.place for x in pace.outliers}
    what = f"{places.pop() if len(places) == 1 else 'place'}{'s are' if more > 1 else ' is'}"
    return [*texts, f"{more} more {what} behind in the same way{most}."]


def who(x: summary.PaceOutlier) -> str:
    """The place with what it hangs on: `node0412 (switch leaf07, slowest rank 1648)`, or `rank 5 (node1)`."""
    rank = "a process without a rank" if x.rank is None else f"rank {x.rank}"
    slowest = "" if x.rank is None else f"slowest {rank}"
    name, other = (x.node or "", slowest) if x.place == "node" else (rank, x.node)
    inside = ", ".join(filter(None, (x.switch and f"switch {x.switch}", other)))
    return f"{name} ({inside})" if inside else name


PACING = TableOf[summary.PacePlace](
    caption="Pacing: time above the median step",
    # the farthest behind first
    rows=lambda s: sorted(s.pacing.places if s.pacing else (), key=lambda x: -max(x.step_share, x.own_share or 0.0)),
    columns=(
        Column("node", "node"),
        Column("switch", "switch"),
        Column("rank", "rank"),
        Column("step", lambda x: signed(x.step_share)),
        Column("own work", lambda x: signed(x.own_share)),
    ),
    left=2,
    section="steps",
    page_order=2,
    in_terminal=lambda s: s.pacing is not None and len(s.pacing.places) > 1,
    most=_PLACES,
    rest="places",
    advice=pace_sentences,
    file=File("pacing", lambda s: map(plain, s.pacing.places) if s.pacing else ()),
)


def signed(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


TABLES: tuple[TableOf[Any], ...] = (PACE_CHANGES, PACING)
