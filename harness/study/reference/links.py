"""The numbers of exercise 0 as metrics by name, and its device: its runs have no steps. Reads their one file."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from harness.analysis.metrics import Metrics
from harness.common.bounded_read import read_bounded_json
from harness.run import Run

LARGEST = "largest_messages_ns"
_CPU_BACKEND = "gloo"


class LinkDevice(NamedTuple):
    """Between which devices exercise 0 measured."""

    kind: Literal["cpu", "gpu"]
    name: str


def link_device(run: Run) -> LinkDevice | None:
    """The devices of a run of exercise 0; None for other exercises, or if the file cannot be read."""
    found = _results(run)
    if found is None or not isinstance(found.get("device_name"), str):
        return None
    return LinkDevice("cpu" if found.get("backend") == _CPU_BACKEND else "gpu", found["device_name"])


def link_metrics(run: Run) -> Metrics:
    """Of each collective and scope the largest message's bus bandwidth and the latency α, and the time of all largest
    messages together; empty for other exercises, or if the file cannot be read."""
    found: Metrics = {}
    total = 0.0
    try:
        for result in (_results(run) or {}).get("results", []):
            name = f"{result['collective']}_{result['scope']}".replace("-", "_")
            if result.get("fit"):
                found[f"{name}_alpha_ns"] = float(result["fit"]["alpha_ns"])
            if points := result.get("points"):
                largest = max(points, key=lambda point: point["message_bytes"])
                found[f"{name}_bus_gb_per_s"] = float(largest["busbw_gbytes_per_s"])
                total += float(largest["time_ns"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return {}
    return found | ({LARGEST: total} if total else {})


def _results(run: Run) -> dict[str, Any] | None:
    try:
        content = read_bounded_json(run.collectives)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
