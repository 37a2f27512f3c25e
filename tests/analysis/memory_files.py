"""Memory snapshots as a training writes them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.common.run_folder.memory_snapshot import CATEGORIES
from harness.common.run_folder.run_files import MEMORY_SNAPSHOTS

MB = 1_000_000


def by_category(**bytes_: int) -> dict[str, int]:
    return dict.fromkeys(CATEGORIES, 0) | bytes_


def moment(**bytes_: int) -> dict[str, Any]:
    """Weights and whatever else is given, in a forward of step 3."""
    holder = {"range": "forward", "module": "model.layers.*.mlp", "blocks": 4}
    return {
        "time_ns": 2_000, "step": 3, "range": "forward", "module": "model.layers.1.mlp", "operator": "aten.mm.default",
        "bytes": by_category(**bytes_), "blocks": 9,
        "holders": [holder | {"category": name, "bytes": size} for name, size in bytes_.items()],
    }  # fmt: skip


def memory_snapshot(rank: int, activations: int = 30 * MB, **changes: Any) -> dict[str, Any]:
    """A rank that held 10 MB of weights and so many bytes of activations."""
    lines = {name: [0, 0, 0] for name in CATEGORIES}
    lines |= {"weights": [10 * MB] * 3, "activations": [0, activations, 1000]}
    return {
        "version": 1, "rank": rank, "device": "cpu", "complete": True, "in_profiled_steps": False,
        "steps": [{"step": 3, "start_ns": 500}], "times_ns": [0, 2_000, 4_000], "bytes": lines,
        "peak": moment(weights=10 * MB, activations=activations), "failure": None, "allocator": None,
    } | changes  # fmt: skip


def write_memory(run_dir: Path, *documents: Any) -> list[Path]:
    """Each as the file of its rank; a text as it is."""
    paths = []
    for number, document in enumerate(documents):
        path = MEMORY_SNAPSHOTS.path(run_dir, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        paths.append(path)
    return paths
