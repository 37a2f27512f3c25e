"""The result of a reference's check in words, for a terminal. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from harness.common.paths import PROGRAM
from harness.format.format import duration, metric_text
from harness.study.reference.check import ReferenceChecked, StepTime, VariantChecked, VariantOutcome
from harness.study.reference.times import StepTimeChange

WIDEST = 10  # an interval whose ends differ by more says nothing
MOST_CHANGED = 6  # metrics in words; --json has all


def lines_of(found: ReferenceChecked, reasons: list[str], width: int) -> Iterator[str]:
    """The verdict first, then each variant, then what likely moved them."""
    yield from wrap(f"{found.outcome.value}: {_heading(found)}", width)
    yield ""
    for each in sorted(found.variants, key=lambda v: -list(VariantOutcome).index(v.outcome)):
        yield from _variant(each, width)
    if found.missing:
        yield from wrap(f"not in {found.new}: {', '.join(found.missing)}", width, subsequent_indent="  ")
    if found.unmatched:
        yield from wrap(
            f"not in {found.reference}: {', '.join(found.unmatched)}", width, subsequent_indent="  "
        )
    if found.traces_absent:
        count = len(found.traces_absent)
        yield f"the traces of {count} variant{'s' * (count != 1)} of {found.reference} are not on this machine"
    if reasons:
        yield ""
        yield "Likely reason"
        for reason in reasons:
            yield from wrap(f"  - {reason}", width, subsequent_indent="    ")
    yield from _next(found)


def _heading(found: ReferenceChecked) -> str:
    if not found.new:
        return f"{found.reference} as it was recorded; there is no other reference of its site to compare it with"
    if not found.variants:
        return f"no variant of {found.new} has the settings of a variant of the reference {found.reference}"
    counts = [f"{sum(v.outcome is o for v in found.variants)} {o.value}" for o in VariantOutcome]
    said = ", ".join(text for text in counts if not text.startswith("0 "))
    return f"{found.new} compared with the reference {found.reference} ({said})"


def _variant(each: VariantChecked, width: int) -> Iterator[str]:
    name = each.variant if each.new == each.variant else f"{each.new} ({each.variant})"
    parts = [*each.problems, *(_time(each) if each.time else []), *_changed(each)]
    text = "; ".join(parts) or ("nothing moved" if each.runs[1] else "as recorded")
    yield from wrap(f"{each.outcome.value}: {name}: {text}", width, subsequent_indent="  ")


def _time(each: VariantChecked) -> Iterator[str]:
    time = each.time
    assert time is not None
    yield f"{_step(time)}{_interval(time, each.runs)}"
    if time.verdict is StepTimeChange.UNKNOWN:
        yield time.why
    if time.verdict in (StepTimeChange.SLOWER, StepTimeChange.FASTER) and each.part is not None:
        part, ns = each.part
        yield f"mostly {part}, {'+' if ns > 0 else '−'}{duration(abs(ns))} a step"


def _step(time: StepTime) -> str:
    steps = f"{duration(time.stored_ns)} → {duration(time.new_ns)}"
    arguments = {
        StepTimeChange.SLOWER: f"a step takes {time.ratio:.2f} times as long",
        StepTimeChange.FASTER: f"a step takes {time.ratio:.2f} times as long",
        StepTimeChange.SAME: f"a step takes as long as before ({time.ratio:.2f} times)",
        StepTimeChange.UNKNOWN: f"step time is {time.ratio:.2f} times that of the reference",
    }
    return f"{arguments[time.verdict]}, {steps}"


def _interval(time: StepTime, runs: tuple[int, int]) -> str:
    counted = f"{runs[0]} and {runs[1]} run{'s' * (max(runs) > 1)}"
    if time.low is None or time.high is None or time.high > WIDEST * time.low:
        return f" ({counted})"
    return f" (95 % interval {time.low:.2f} to {time.high:.2f}, {counted})"


def _changed(each: VariantChecked) -> Iterator[str]:
    """What no load moves."""
    for change in each.changed[:MOST_CHANGED]:
        stored, new = (
            "none" if value is None else metric_text(f"a.{change.name}", value)
            for value in (change.stored, change.new)
        )
        yield f"{change.name} {stored} → {new}"
    if len(each.changed) > MOST_CHANGED:
        yield f"and {len(each.changed) - MOST_CHANGED} more (--json)"
    if not each.changed and all(each.runs):
        yield "counts and bytes are the same"


def _next(found: ReferenceChecked) -> Iterator[str]:
    if found.outcome is not VariantOutcome.UNKNOWN or found.key or not found.variants:
        return
    yield ""
    yield f"more runs would tell: {PROGRAM} reference check RUN RUN RUN, or {PROGRAM} reference record --repeats 4"
