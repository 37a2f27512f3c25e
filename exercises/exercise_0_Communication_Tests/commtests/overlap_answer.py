"""What the overlap test measured, compared with theory: as text, and in one sentence. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from .verdict import number

TIMES = ("compute", "communication", "together", "compute_in_it", "communication_in_it")
LEAST_MS = 1.0  # shorter spans are mostly the starts of kernels and messages
BALANCED = 2.0  # where one takes so many times the other, the share says little
NOTICED = 0.05
UNSTEADY = 0.5  # so far apart, the quartiles of the share allow no sentence


@dataclass(frozen=True)
class QuartileSpread:
    """The median of all repetitions, and their quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Overlap:
    """The test's numbers. share: (compute + communication - together) / min(compute, communication), from the medians
    and not clipped: below 0 both took longer together than one after the other. shares: clipped, of each repetition."""

    compute_ms: QuartileSpread
    communication_ms: QuartileSpread
    together_ms: QuartileSpread
    share: float
    shares: QuartileSpread
    compute_slowdown: float
    communication_slowdown: float

    @property
    def hidden(self) -> float:
        """The share of what could be hidden that was, between 0 and 1."""
        return _clipped(self.share)

    @property
    def ideal_ms(self) -> float:
        """With all of the shorter one hidden behind the longer one."""
        return max(self.compute_ms.median, self.communication_ms.median)

    @property
    def apart_ms(self) -> float:
        return self.compute_ms.median + self.communication_ms.median


def spread(values: Sequence[float]) -> QuartileSpread:
    """Median and quartiles of two values or more."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return QuartileSpread(median(values), low, high)


def overlap_of(ms: Mapping[str, Sequence[float]]) -> Overlap:
    """From the milliseconds of each repetition, by `TIMES`."""
    compute, communication, together, compute_in_it, communication_in_it = (ms[name] for name in TIMES)
    shares = map(_share, compute, communication, together)
    return Overlap(
        compute_ms=spread(compute),
        communication_ms=spread(communication),
        together_ms=spread(together),
        share=_share(median(compute), median(communication), median(together)),
        shares=spread([_clipped(each) for each in shares]),
        compute_slowdown=_ratio(compute_in_it, compute),
        communication_slowdown=_ratio(communication_in_it, communication),
    )


def _share(compute: float, communication: float, together: float) -> float:
    return (compute + communication - together) / min(compute, communication)


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))


def _ratio(values: Sequence[float], base: Sequence[float]) -> float:
    return median(a / b for a, b in zip(values, base, strict=True)) - 1


def overlap_lines(data: Mapping[str, Any]) -> list[str]:
    """The table; empty where nothing was measured."""
    if "ms" not in data:
        return []
    found = overlap_of(data["ms"])
    size = data["message_bytes"] / 1024**2
    return [
        f"Overlap: {data['world_size']} ranks, {data['backend']}, {data['device_name']}; the slowest rank's times",
        f"  {data['products']} matrix products of {number(data['flop_per_product'] / 1e9)} GFLOP; "
        f"{data['messages']} all-reduces of {size:.3g} MiB; {len(data['ms']['compute'])} times",
        "",
        f"  {'':<34}{'ms, median':>12}   quartiles",
        *(_row(name, each) for name, each in (
            ("compute only", found.compute_ms),
            ("communication only", found.communication_ms),
            ("both together", found.together_ms),
        )),
        f"  {'best: the longer of both':<34}{found.ideal_ms:>12.1f}",
        f"  {'no overlap: one after the other':<34}{found.apart_ms:>12.1f}",
        "",
        f"  hidden of the shorter: {found.hidden:.0%}, quartiles {_quartiles(found.shares)}, "
        f"not clipped {found.share:.0%}",
        f"  while together: compute {_change(found.compute_slowdown)},",
        f"                  communication {_change(found.communication_slowdown)}",
    ]  # fmt: skip


def _row(name: str, each: QuartileSpread) -> str:
    return f"  {name:<34}{each.median:>12.1f}   {each.low:.1f} to {each.high:.1f}"


def _change(slowdown: float) -> str:
    if abs(slowdown) < NOTICED:
        return "as long as alone"
    return f"{abs(slowdown):.0%} {'longer' if slowdown > 0 else 'shorter'} than alone"


def overlap_sentence(data: Mapping[str, Any]) -> str:
    """The answer, or why there is none."""
    if "ms" not in data:
        return f"OVERLAP: cannot tell: {data['reason']}."
    found = overlap_of(data["ms"])
    shorter = min(found.compute_ms.median, found.communication_ms.median)
    if shorter < LEAST_MS or found.ideal_ms > BALANCED * shorter:
        return (
            f"OVERLAP: cannot tell: computation took {found.compute_ms.median:.3g} ms and communication "
            f"{found.communication_ms.median:.3g} ms, too different to compare; another program may use the machine."
        )
    if found.shares.high - found.shares.low > UNSTEADY:
        return (
            f"OVERLAP: cannot tell: a quarter of the repetitions hid less than {found.shares.low:.0%} and a quarter "
            f"more than {found.shares.high:.0%}; something else uses this machine: try again when it is idle."
        )
    times = (
        f"{found.together_ms.median:.1f} ms together, {found.ideal_ms:.1f} ms at best, "
        f"{found.apart_ms:.1f} ms one after the other"
    )
    slower = (
        f"beside each other, computation took {_change(found.compute_slowdown)}, "
        f"communication {_change(found.communication_slowdown)}"
    )
    return f"OVERLAP: {_hidden(found)}: {times}; {slower}. {_meaning(str(data['device']))}"


def _hidden(overlap: Overlap) -> str:
    if overlap.share < 0:
        return "nothing was hidden: together they took longer than one after the other"
    return f"{overlap.hidden:.0%} of the shorter one was hidden ({_quartiles(overlap.shares)})"


def _quartiles(each: QuartileSpread) -> str:
    return f"{each.low:.0%} to {each.high:.0%}"


def _meaning(device_type: str) -> str:
    if device_type == "cpu":
        return (
            "On CPUs both need the same cores, so this is the cost of sharing them; only a GPU can show what a network "
            "card hides."
        )
    return "In a training this share is an upper limit: communication that starts late cannot be hidden."
