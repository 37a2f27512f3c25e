"""How far the clocks of several hosts are apart, from the ends of the collectives that they share. One answer for the
Summary, the page and the exports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    if len({part.clock for part in parts}) == 1:
        return clocks
    groups = [(m, _lines_by_clock(m)) for m in matched if m.end_ns.shape[1]]
    while found := _aligned_to(clocks, groups):
        clocks |= found
    return clocks


_Lines = dict[str, list[int]]  # clock -> its lines in a group's tables


def _lines_by_clock(m: MatchedGroup) -> _Lines:
    lines: _Lines = {}
    for i, clock in enumerate(m.clocks):
        lines.setdefault(clock, []).append(i)
    return lines


def _aligned_to(aligned: dict[str, Clock], groups: Sequence[tuple[MatchedGroup, _Lines]]) -> dict[str, Clock]:
    """The clocks that share a collective with an aligned clock and are not aligned themselves."""
    differences: dict[str, list[I64]] = {}
    for m, lines in groups:
        others = sorted(i for clock, own in lines.items() if clock in aligned for i in own)
        waiting = {clock: own for clock, own in lines.items() if clock not in aligned}
        if others and waiting:
            shift = np.array([aligned[m.clocks[i]].offset_ns for i in others])[:, None]
            for clock, own in _differences(m.end_ns, waiting, m.end_ns[others] - shift):
                differences.setdefault(clock, []).append(own)
    return {clock: _clock(clock, np.concatenate(differences[clock])) for clock in sorted(differences)}


def _clock(host: str, seen: I64) -> Clock:
    offset = int(seen[0]) + round(float(np.median(seen - seen[0])))
    residual = round(float(np.median(np.abs(seen - offset))))
    return Clock(host=host, offset_ns=offset, residual_ns=residual, collectives=len(seen))


def _differences(end_ns: I64, waiting: _Lines, others: I64) -> Iterator[tuple[str, I64]]:
    """Per clock the median of its lines minus the median of `others`, per column. A float64 rounds integers near
    1.7·10¹⁸, so integers are subtracted before the medians are computed. Clocks of as many ranks are computed at once.
    """
    base = others[0]
    usual = np.median(others - base, axis=0)
    alike: dict[int, list[str]] = {}
    for clock, lines in waiting.items():
        alike.setdefault(len(lines), []).append(clock)
    for clocks in alike.values():
        own = end_ns[[waiting[clock] for clock in clocks]]  # clock, rank, collective
        far = own[:, 0, 0] - others[0, 0]
        left = np.median(own - far[:, None, None] - base, axis=1) - usual
        yield from zip(clocks, far[:, None] + np.rint(left).astype(np.int64), strict=True)
