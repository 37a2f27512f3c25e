"""Real traces of real GPUs with known answers: others recorded them, so the project does not contain them.

They lie in `HARNESS_TEST_TRACES`, else in `shared/traces` beside the checkout; tests that read them skip where they are
absent, and say so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("HARNESS_TEST_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
_TRUTH = FOLDER / "truth.json"
TRUTH: dict[str, Any] = json.loads(_TRUTH.read_text(encoding="utf-8")) if _TRUTH.is_file() else {}
"""By file: what is known of it, to the nanosecond. Empty where the traces are absent."""

EACH_TOOL = (
    "kineto_dlrm_v100_8ranks",
    "kineto_a100_collective_args",
    "kineto_resnet50_workers/num_workers_4.json.gz",
    "nsys_h100_2gpu_ab/before.sqlite",
    "nsys_a100_ddp_4gpu/rank0.sqlite.gz",
)
"""One of each recording: both tools, one rank and several, with and without arguments of collectives."""


def real_jobs() -> list[Path]:
    """Each job of them: the ranks of one folder, or the single traces of a comparison; empty where they are absent."""
    found = []
    for folder in (path for path in sorted(FOLDER.glob("*")) if path.is_dir()):
        traces = [path for path in sorted(folder.iterdir()) if path.suffix != ".nsys-rep"]
        found += [folder] if len(traces) > 2 else traces  # two are a comparison
    return found


needs_real_traces = pytest.mark.skipif(
    not TRUTH, reason=f"no real traces in {FOLDER}; HARNESS_TEST_TRACES names another folder"
)


def real_trace(name: str) -> Path:
    """A file or folder of them, or a skipped test."""
    if not (FOLDER / name).exists():
        pytest.skip(f"the real trace {name} is not in {FOLDER}; HARNESS_TEST_TRACES names another folder")
    return FOLDER / name
