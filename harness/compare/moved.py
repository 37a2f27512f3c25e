"""Which nodes, ranges and kernels of two runs changed most, of one rank in one step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict

from harness.analysis.summary import TOP_KERNELS, Summary

MOST = 30  # of each kind
LEAST = 0.005  # of a's step: what moved less is left out
ABOVE_THE_CUT = 2  # times the last row's share: a kernel near it may be in one table only by chance

What = Literal["node", "range", "kernel"]
Statistics = Mapping[str, tuple[float, float]]  # by name: nanoseconds and calls, of one rank in one step


class MovedStatistic(BaseModel):
    """One statistic of two runs, of one rank in one step: of a node its median step, of a range its time on the host,
    of a kernel its time on the device. Of a node the calls are its ranks."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    what: What
    name: str
    a_ns: float
    b_ns: float
    a_calls: float
    b_calls: float

    @property
    def by_ns(self) -> float:
        """How much longer b takes."""
        return self.b_ns - self.a_ns


def moved(a: Summary, b: Summary) -> list[MovedStatistic]:
    """Nodes, ranges and kernels, MOST of each, in each the largest change first. Empty if a run has no step."""
    if not a.steps.counted or not b.steps.counted or a.steps.duration is None:
        return []
    least = LEAST * a.steps.duration.median_ns
    nodes, ranges = (_nodes(a), _nodes(b)), (_ranges(a), _ranges(b))
    every_range: set[str] = {*ranges[0], *ranges[1]} if all(ranges) else set()
    return [
        *_pairs("node", *nodes, 0.0, {*nodes[0]} & {*nodes[1]}),
        *_pairs("range", *ranges, least, every_range),
        *_pairs("kernel", _kernels(a), _kernels(b), least, {*_comparable(a, b), *_comparable(b, a)}),
    ]


def _comparable(mine: Summary, other: Summary) -> Iterable[str]:
    """The kernels of one run of which it is known what they took in the other: those that it launched too, and those
    that it did not. Where its table was cut, only kernels with a share that would be high in it count as those: the
    others may lie below the cut. A run that was not traced did not lose its kernels."""
    listed = {k.name for k in other.kernels}
    is_cut = len(other.kernels) >= TOP_KERNELS
    least = ABOVE_THE_CUT * min(k.share for k in other.kernels) if is_cut else 0.0
    return (k.name for k in mine.kernels if k.name in listed or (listed and k.share >= least))


def _pairs(what: What, a: Statistics, b: Statistics, least_ns: float, names: Collection[str]) -> list[MovedStatistic]:
    """names: of what is known in both runs; what is missing in one of them took no time in it."""
    chosen = [name for name in dict.fromkeys([*a, *b]) if name in names]
    both = ((name, *a.get(name, (0.0, 0.0)), *b.get(name, (0.0, 0.0))) for name in chosen)
    found = [
        MovedStatistic(what=what, name=name, a_ns=a_ns, b_ns=b_ns, a_calls=a_calls, b_calls=b_calls)
        for name, a_ns, a_calls, b_ns, b_calls in both
        if abs(b_ns - a_ns) >= least_ns
    ]
    return sorted(found, key=lambda each: -abs(each.by_ns))[:MOST]


def _nodes(s: Summary) -> Statistics:
    """Of each host the median of its ranks' median steps."""
    of_host: dict[str, list[int]] = {}
    if len(s.sources) == len(s.steps.per_rank):
        for source, rank in zip(s.sources, s.steps.per_rank, strict=True):
            if source.host is not None and rank.median_ns is not None:
                of_host.setdefault(source.host, []).append(rank.median_ns)
    return {host: (float(median(each)), float(len(each))) for host, each in of_host.items()}


def _ranges(s: Summary) -> Statistics:
    return {r.name: (r.host_ns / s.steps.counted, r.instances / s.steps.counted) for r in s.ranges}


def _kernels(s: Summary) -> Statistics:
    """By name; of a name with several kinds or precisions the sum."""
    found: dict[str, tuple[float, float]] = {}
    for k in s.kernels:
        ns, calls = found.get(k.name, (0.0, 0.0))
        found[k.name] = (ns + k.duration_ns / s.steps.counted, calls + k.count / s.steps.counted)
    return found
