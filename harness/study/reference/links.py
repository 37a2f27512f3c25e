"""The numbers of exercise 0 as metrics by name: its runs have no steps. Reads their one file."""

from __future__ import annotations

import json

from harness.analysis.metrics import Metrics
from harness.run import Run

LARGEST = "largest_messages_ns"


def link_metrics(run: Run) -> Metrics:
    """Of each collective and scope the largest message's bus bandwidth and the latency α, and the time of all largest
    messages together; empty for other exercises and where the file cannot be read."""
    try:
        results = json.loads(run.collectives.read_bytes())["results"]
        found: Metrics = {}
        total = 0.0
        for result in results:
            name = f"{result['collective']}_{result['scope']}".replace("-", "_")
            if result.get("fit"):
                found[f"{name}_alpha_ns"] = float(result["fit"]["alpha_ns"])
            if points := result.get("points"):
                largest = max(points, key=lambda point: point["message_bytes"])
                found[f"{name}_bus_gb_per_s"] = float(largest["busbw_gbytes_per_s"])
                total += float(largest["time_ns"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found | ({LARGEST: total} if total else {})
