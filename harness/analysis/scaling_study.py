"""The sizes of a scaling study as data, and the factor that limits it, in words. Knows no run.

Efficiency is throughput per device over that of the smallest size. POP's factors (analysis/scaling.py, summary.pop) say
where it went: their ratios to the smallest size's multiply to that of the global efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from harness.analysis.repeats import Repeated

FACTORS: dict[str, str] = {
    "parallel": "parallel efficiency (POP)",
    "load_balance": "load balance",
    "communication": "communication efficiency",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "orchestration": "orchestration efficiency",
}
_LIMITS = {
    "computation_scalability": "more computing time for the same work (smaller pieces, or shared cores)",
    "load_balance": "unequal work of the devices",
    "communication": "communication that no computation hides",
    "serialisation": "ranks that wait for each other",
    "transfer": "the time to send the messages",
    "orchestration": "devices that wait for their host (launches, data, Python)",
}
_NOTICEABLE = 0.97
_SUSPECT = 1.1  # caches explain a little more than the ideal


class Size(BaseModel):
    """One size of a study. throughput: in `unit`. values: shares and efficiencies by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    point: str
    settings: dict[str, str]
    devices: int
    runs: list[str]
    unit: str
    throughput: Repeated | None = None
    speed_up: Repeated | None = None
    efficiency: Repeated | None = None
    values: dict[str, Repeated] = {}


class Limit(NamedTuple):
    """A factor's value at the largest size over that at the smallest."""

    name: str
    ratio: float


def limits(sizes: Sequence[Size]) -> list[Limit]:
    """The factors that multiply to the loss between the smallest and the largest size, the worst first.

    Communication counts by its two factors if both sizes know them.
    """
    if len(sizes) < 2:
        return []
    first, last = sizes[0].values, sizes[-1].values
    split = all(name in values for name in ("serialisation", "transfer") for values in (first, last))
    names = [
        "load_balance",
        "orchestration",
        *(("serialisation", "transfer") if split else ("communication",)),
    ]
    found = [
        Limit(name, last[name].mean / first[name].mean)
        for name in names
        if name in first and name in last and first[name].mean > 0
    ]
    if "computation_scalability" in last:
        found.append(Limit("computation_scalability", last["computation_scalability"].mean))
    return sorted(found, key=lambda limit: limit.ratio)


def what_limits(sizes: Sequence[Size]) -> str:
    """One sentence: how efficient the largest size is, and the factor that costs most."""
    if len(sizes) < 2 or sizes[-1].efficiency is None:
        return "fewer than two sizes were measured, so there is no result about scaling"
    last, known = sizes[-1], sizes[-1].efficiency
    begin = (
        f"on {last.devices} devices each does {100 * known.mean:.0f} % of what one of {sizes[0].devices} does"
    )
    if known.mean > _SUSPECT:
        look = f"look at the smallest size first (slurm.sh report {sizes[0].runs[0]})"
        return f"{begin}, more than the ideal: {look}"
    if known.low is not None and known.high is not None and known.low <= 1 <= known.high:
        begin += f" (95 % interval {100 * known.low:.0f} to {100 * known.high:.0f} %: it contains 100 %)"
    found = limits(sizes)
    if not found:
        return f"{begin}; the runs' traces do not show the cause of the loss"
    worst = found[0]
    if worst.ratio >= _NOTICEABLE:
        return f"{begin}; no factor of its efficiency lost more than {100 * (1 - _NOTICEABLE):.0f} %"
    told = f"{worst.name.replace('_', ' ')} is {worst.ratio:.2f} times that of the smallest size"
    return f"{begin}; the largest loss is {_LIMITS[worst.name]}: {told}"
