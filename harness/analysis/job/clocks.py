"""How far the clocks of several hosts are apart, from the ends of the collectives that they share. One answer for the
Summary, the page and the exports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.job.matching import MatchedGroup, match_collectives
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import unmeasured
from harness.analysis.process.part import RankPart
from harness.analysis.process.view import views
from harness.analysis.summary import Clock
from harness.traces.trace import I64, Trace


def clocks_of(traces: Sequence[Trace]) -> dict[str, Clock]:
    """The clocks of traces that were not measured, each with its offset from the first trace's."""
    parts = [unmeasured(view, load_rules()) for trace in traces for view in views(trace)]
    several = len({part.clock for part in parts}) > 1
    return align_clocks(parts, match_collectives(parts, None).matched if several else [])


def align_clocks(parts: Sequence[RankPart], matched: list[MatchedGroup]) -> dict[str, Clock]:
    """Each clock's offset from the first part's, by the median difference of the ends of shared collectives.

    `residual_ns` is the median absolute deviation from that offset. A clock that shares no collective with an aligned
    clock is missing from the result."""
    if not parts:
        return {}
    first = parts[0].clock
    clocks = {first: Clock(host=first, offset_ns=0, residual_ns=0, collectives=0)}
    waiting = {part.clock for part in parts} - {first}
    while waiting:
        found = {c: clock for c in sorted(waiting) if (clock := _offset(c, clocks, matched))}
        if not found:
            break
        clocks |= found
        waiting -= set(found)
    return clocks


def _offset(clock: str, aligned: dict[str, Clock], matched: list[MatchedGroup]) -> Clock | None:
    differences: list[I64] = []
    for m in matched:
        mine = [i for i, p in enumerate(m.parts) if p.clock == clock]
        others = [i for i, p in enumerate(m.parts) if p.clock in aligned]
        if mine and others and m.end_ns.shape[1]:
            shift = np.array([aligned[m.parts[i].clock].offset_ns for i in others])[:, None]
            differences.append(_differences(m.end_ns[mine], m.end_ns[others] - shift))
    if not differences:
        return None
    seen = np.concatenate(differences)
    offset = int(seen[0]) + round(float(np.median(seen - seen[0])))
    residual = round(float(np.median(np.abs(seen - offset))))
    return Clock(host=clock, offset_ns=offset, residual_ns=residual, collectives=len(seen))


def _differences(own: I64, others: I64) -> I64:
    """Median of `own` rows minus median of `others`, per column. A float64 rounds integers near 1.7·10¹⁸, so
    integers are subtracted before the medians are computed."""
    base, far = others[0], own[0, 0] - others[0, 0]
    left = np.median(own - far - base, axis=0) - np.median(others - base, axis=0)
    found: I64 = far + np.rint(left).astype(np.int64)
    return found
