"""The faults that a run asked for itself, and the run without some of them."""

from __future__ import annotations

from collections.abc import Collection

from harness.analysis.summary import Summary
from harness.common.errors import RequestError
from harness.common.faults import Fault, parse_fault
from harness.experiment.advice import Fields
from harness.explain.finding import asked_of


def without_faults(
    s: Summary,
    names: Collection[str],
    phase: str | None = None,
    ranks: Collection[int | None] | None = None,
) -> Fields | None:
    """The field without the faults of these names, or None where the run asked for none of them.

    phase, ranks: only faults that happen there; None: wherever they happen.
    """
    asked: tuple[str, ...] = getattr(asked_of(s), "faults", ())
    kept = tuple(text for text in asked if not _is_meant(text, names, phase, ranks))
    return {"faults": kept} if len(kept) < len(asked) else None


def _is_meant(
    text: str, names: Collection[str], phase: str | None, ranks: Collection[int | None] | None
) -> bool:
    fault = _read(text)
    if fault is None or fault.name not in names:
        return False
    elsewhere = phase is not None and fault.values.get("in", phase) != phase
    others = ranks is not None and fault.rank is not None and fault.rank not in ranks
    return not elsewhere and not others


def _read(text: str) -> Fault | None:
    """The fault, or None for one of another version of the harness."""
    try:
        return parse_fault(text)
    except RequestError:
        return None
