"""The changes of pace of the whole training, as a table and in sentences, and its slowest rank."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.summary import PaceChange, Summary
from harness.format.format import duration, percent
from harness.live.pace import Change
from harness.live.pace_words import change_sentence, returns, slowest_sentence, worth_telling
from harness.live.slowest import Slowest
from harness.report.tables.table import Column, TableOf, file_of

_FEW = 4  # changes with a sentence of their own
_RANKS = 8  # by their numbers


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


def _shown(change: PaceChange) -> str:
    return f"({change.evidence[:1].upper()}{change.evidence[1:]}.)" if change.evidence else ""


def _slowest(s: Summary, changes: Sequence[Change]) -> list[str]:
    found = s.slowest_rank
    if found is None or found.rank is None:
        return []
    slowest = Slowest(found.kind, found.rank, found.share, found.costs_ns, found.chance)
    return [slowest_sentence(slowest, found.step_ns)] if worth_telling(slowest, changes) else []


def _change(each: PaceChange) -> Change:
    ends = each.step, each.low_step, each.high_step, each.before_ns, each.after_ns
    return Change(*ends, each.ratio, tuple(each.ranks), each.named, each.last_step)


def _who(each: PaceChange) -> str:
    if not each.named:
        return "not known"
    more = f" and {len(each.ranks) - _RANKS} more" if len(each.ranks) > _RANKS else ""
    return ", ".join(map(str, each.ranks[:_RANKS])) + more


PACE_CHANGES = TableOf[PaceChange](
    caption="Changes of pace of the whole training, by its own clock",
    rows=lambda s: s.pace_changes,
    columns=(
        Column("step", lambda x: str(x.step)),
        Column("95 % interval", lambda x: f"{x.low_step} to {x.high_step}"),
        Column("until", lambda x: "the end" if x.last_step is None else str(x.last_step)),
        Column("before", lambda x: duration(x.before_ns)),
        Column("after", lambda x: duration(x.after_ns)),
        Column("change", lambda x: f"{'+' if x.ratio >= 1 else '−'}{percent(abs(x.ratio - 1))}"),
        Column("ranks", _who),
        Column("phase", lambda x: x.phase or "–"),
    ),
    section="steps",
    topic="changes of pace",
    spare=("95 % interval", "until"),
    advice=pace_change_sentences,
    file=file_of("pace_changes"),
)
