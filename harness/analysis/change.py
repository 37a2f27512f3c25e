"""Whether a command's number changed, from several runs of it: the run is the sample. Knows no run on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import log1p
from statistics import median
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from harness.analysis.statistics import FEWEST_RUNS, Effect, Sample, effect, with_runs
from harness.analysis.summary import TOP_KERNELS, RankTraining, Summary

Key = dict[str, str]
"""What it is about, in words → what it was. Only what a run recorded."""


def key_of(summary: Summary) -> Key:
    """The hardware and software of a run, as far as it recorded them."""
    found: dict[str, str | None] = {
        "devices": _devices(summary),
        "nodes": str(len(summary.hosts)) if summary.hosts else None,
        "ranks": str(summary.world_size) if summary.world_size else None,
        "profiler": ", ".join(sorted({source.tool for source in summary.sources})) or "none",
        "container image": str((summary.run or {}).get("image") or ""),
        "model": _same(t.model for t in summary.training),
        "sequence length": _same(str(t.seq_length) for t in summary.training if t.seq_length),
        "host processor": _same(t.host_cpu for t in summary.training),
        **_versions(summary.training),
    }
    return {name: value for name, value in found.items() if value}


def differences(a: Sequence[Key], b: Sequence[Key]) -> dict[str, tuple[str, str]]:
    """What differs between any two of the runs: its name → each side's values. What a run did not record does not
    differ."""
    names = dict.fromkeys(name for key in (*a, *b) for name in key)
    of_each = {name: (_values(a, name), _values(b, name)) for name in names}
    return {
        name: (" or ".join(in_a), " or ".join(in_b))
        for name, (in_a, in_b) in of_each.items()
        if len({*in_a, *in_b}) > 1
    }


def unrecorded(a: Sequence[Key], b: Sequence[Key]) -> list[str]:
    """What some of the runs recorded and others did not."""
    every = [*a, *b]
    names = dict.fromkeys(name for key in every for name in key)
    return [name for name in names if not all(name in key for key in every)]


def _values(keys: Sequence[Key], name: str) -> list[str]:
    return sorted({key[name] for key in keys if name in key})


def _devices(summary: Summary) -> str | None:
    names = [t.device_name for t in summary.training if t.device_name] or [d.name for d in summary.devices if d.name]
    counted = Counter(names)
    return ", ".join(f"{count} × {name}" for name, count in sorted(counted.items())) or None


def _versions(training: Sequence[RankTraining]) -> Key:
    """Of each package, as the ranks have it."""
    names = dict.fromkeys(name for t in training for name in t.versions)
    return {name: _same(t.versions.get(name) for t in training) or "" for name in names}


def _same(values: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({value for value in values if value})) or None


_NEUTRAL = re.compile(r"expected_\w+|nccl_\w+|parameter_bytes|message_bytes|tokens_per_step|microbatches|gemm_\w+")
_LESS_IS_WORSE = re.compile(
    r"useful_share|tokens_per_s(_per_rank)?|mfu|hfu|overlap_fraction|load_balance|\w*efficiency"
)
_MORE_IS_WORSE = re.compile(
    r"\w+_(ns|bytes|joules|count)|step_ns_per_token|bytes_across_nodes|last_loss|bubble|waiting_share_of_communication"
    r"|(data_loading|exposed_communication|memory|idle\w*)_share"
)


def more_is_worse(name: str) -> bool | None:
    """Of a metric of `metrics_by_name`; None if neither more nor less of it is worse by itself."""
    if _NEUTRAL.fullmatch(name):
        return None
    if _LESS_IS_WORSE.fullmatch(name):
        return False
    return True if _MORE_IS_WORSE.fullmatch(name) else None


BLOCK_RUNS = 4  # of A B B A
MOST_RUNS = 64  # of a side; a machine that needs more is better made quiet
USUAL_RUNS = 4  # of a side, unless asked


class ChangeVerdict(str, Enum):
    """What may be said of B against A."""

    FINE = "same or better"
    WORSE = "worse"
    UNKNOWN = "cannot tell"
    NOT_COMPARABLE = "not comparable"

    @property
    def exit_code(self) -> int:
        """Of a command that ends with this verdict; 2 is a wrong request (harness/common/errors.py)."""
        return {ChangeVerdict.FINE: 0, ChangeVerdict.WORSE: 1}.get(self, 3)


class JudgedChange(NamedTuple):
    """A verdict with its reason. needed: runs of each side with which runs that vary like these would tell; None where
    the verdict is one, or MOST_RUNS would not do."""

    verdict: ChangeVerdict
    why: str
    found: Effect | None
    needed: int | None = None


def judge(a: Sequence[Sample], b: Sequence[Sample], fail_above: float, worse_is_more: bool = True) -> JudgedChange:
    """B against A, one sample per run.

    fail_above: the share by which B may be worse: 0.05 lets 5 % pass. Where less is worse, A may be so much more than
    B. The rule: docs/studies.md. Raises ValueError: a value is not above zero.
    """
    if not all(sample.value > 0 for sample in (*a, *b)):
        raise ValueError("ratios need numbers above zero")
    found = effect(a, b)
    if found is None:
        return JudgedChange(ChangeVerdict.UNKNOWN, _too_few(a, b), None, USUAL_RUNS)
    as_cost = found if worse_is_more else found._replace(log_ratio=-found.log_ratio)
    verdict, why = _decided(as_cost, fail_above)
    needed = _needed(as_cost, fail_above) if verdict is ChangeVerdict.UNKNOWN else None
    return JudgedChange(verdict, why, found, needed)


def _too_few(a: Sequence[Sample], b: Sequence[Sample]) -> str:
    if min(len(a), len(b)) < FEWEST_RUNS:
        counts = f"A has {len(a)} run{'s' * (len(a) != 1)} and B {len(b)} run{'s' * (len(b) != 1)}"
        return f"{counts}: the steps of one run do not show how much runs vary"
    return "no block of runs has both A and B, or there are too few runs to know how much runs vary"


def _decided(found: Effect, fail_above: float) -> tuple[ChangeVerdict, str]:
    """Of an effect in which more is worse."""
    limit = log1p(fail_above)
    low, high = found.log_ratio - found.reach, found.log_ratio + found.reach
    allowed = f"{100 * fail_above:g} %"
    if low > 0 and found.log_ratio > limit:
        return (ChangeVerdict.WORSE, f"B is worse: the interval is above 1, and the ratio is beyond {allowed}")
    if high < 0:
        return ChangeVerdict.FINE, "B is better: the whole interval is below 1"
    if high < limit:
        if found.smallest_seen <= fail_above:
            return (ChangeVerdict.FINE, f"B is not worse by {allowed}, and these runs would have shown such a change")
        return ChangeVerdict.UNKNOWN, f"these runs would not have shown a change of {allowed}"
    if low > 0:
        return ChangeVerdict.UNKNOWN, f"B is worse, but these runs do not show whether by more than {allowed}"
    return ChangeVerdict.UNKNOWN, f"the interval contains both no change and a change of {allowed}"


def _needed(found: Effect, fail_above: float) -> int | None:
    """The fewest runs of each side, more than now, with which the same ratio and spread would be decided."""
    for each in range(min(found.runs) + 1, MOST_RUNS + 1):
        if _decided(with_runs(found, each, BLOCK_RUNS), fail_above)[0] is not ChangeVerdict.UNKNOWN:
            return each
    return None


MOST = 30  # of each kind
LEAST = 0.005  # of a's step: what moved less is left out

What = Literal["node", "range", "kernel"]
Statistics = Mapping[str, tuple[float, float]]  # by name: nanoseconds and calls, of one rank in one step


class MovedStatistic(BaseModel):
    """One statistic of two runs, of one rank in one step: of a node its median step, of a range its time on the host,
    of a kernel its time on the device. calls: of a node its ranks. exposed: of a communication kernel, without compute
    beside it."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    what: What
    name: str
    a_ns: float
    b_ns: float
    a_calls: float
    b_calls: float
    a_exposed_ns: float | None = None
    b_exposed_ns: float | None = None

    @property
    def by_ns(self) -> float:
        """How much longer b takes."""
        return self.b_ns - self.a_ns


def moved(a: Summary, b: Summary) -> list[MovedStatistic]:
    """Nodes, ranges and kernels, MOST of each, in each the largest change first. Empty if a run has no step."""
    if not a.steps.counted or not b.steps.counted or a.steps.duration is None:
        return []
    least = LEAST * a.steps.duration.median_ns
    whole = all(len(s.kernels) < TOP_KERNELS for s in (a, b))
    return [
        *_pairs("node", _nodes(a), _nodes(b), 0.0, whole=False),
        *_pairs("range", _ranges(a), _ranges(b), least, whole=bool(a.ranges and b.ranges)),
        *_with_exposed(
            _pairs("kernel", _kernels(a), _kernels(b), least, whole=whole and bool(a.kernels and b.kernels)), a, b
        ),
    ]


def _with_exposed(rows: Sequence[MovedStatistic], a: Summary, b: Summary) -> list[MovedStatistic]:
    of_a, of_b = map(_exposed, (a, b))
    return [x.model_copy(update={"a_exposed_ns": of_a.get(x.name), "b_exposed_ns": of_b.get(x.name)}) for x in rows]


def _exposed(s: Summary) -> dict[str, float]:
    """Of communication kernels by name, of one rank in one step."""
    return {k.name: k.exposed_ns / s.steps.counted for k in s.kernels if k.exposed_ns is not None}


def _pairs(what: What, a: Statistics, b: Statistics, least_ns: float, *, whole: bool) -> list[MovedStatistic]:
    """whole: what one run does not have took no time in it; else it is not known, and left out."""
    names = dict.fromkeys([*a, *b]) if whole else [name for name in a if name in b]
    both = ((name, *a.get(name, (0.0, 0.0)), *b.get(name, (0.0, 0.0))) for name in names)
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
