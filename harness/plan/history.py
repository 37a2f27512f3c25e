"""What earlier runs of a site say about the next one: their speed and start.

Only the newest few are looked at, and only what they stored: a submission must not wait for old traces.
"""

from __future__ import annotations

import re
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.model.model_config import DTYPES, Precision
from harness.common.run_folder.run_files import RECORD, SUMMARY
from harness.common.run_folder.run_store import RunFile
from harness.launch.job import Job
from harness.plan.memory import Workload
from harness.run import Run

NEWEST = 6
LARGEST_FILE = 8_000_000
_JOB_ID = r"(?:local-)?\d+(?:[_-]\d+)*"  # 4711, 4711_3 of an array, 4711-2 of an allocation, local-1


class EarlierRun(NamedTuple):
    """What one earlier run of the same exercise and model reached."""

    job_id: str
    flops_per_s_per_device: float
    start_s: float | None = None  # of the job, without its steps


def earlier_runs(job: Job, w: Workload) -> list[EarlierRun]:
    """The newest runs of the same exercise, model and precision at the same site, without injected faults.

    On CPUs with as many ranks: they share the cores.
    """
    if job.model is None:
        return []
    found = []
    for run in _newest(Path(job.output_dir), job.run_name[0]):
        summary = _stored(run, SUMMARY.as_json) or {}
        asked, site = summary.get("experiment"), _at(summary, "run", "site", "name")
        clean = isinstance(asked, dict) and not asked.get("faults") and not asked.get("mystery")
        alike = w.device == "cuda" or summary.get("world_size") == w.ranks
        one = _speed(summary, w.precision) if clean and alike and site == job.site.name else None
        if one is not None:
            found.append(one._replace(start_s=_start_s(run, summary)))
    return found


def _newest(folder: Path, before: str) -> list[Run]:
    """The newest runs in an exercise's folder with this name before the job's id."""
    named = re.compile(rf"{re.escape(before)}-{_JOB_ID}-n")  # not of a model whose name begins alike
    records = (folder / "profiler").glob(f"{escape(before)}-*/{RECORD.name}")
    with suppress(OSError):  # another user closed it: the launch itself says so
        found = [path for path in records if named.match(path.parent.name)]
        newest = sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return [Run(path.parent) for path in newest[:NEWEST]]
    return []


def _stored(run: Run, run_file: RunFile[dict[str, Any]]) -> dict[str, Any] | None:
    """A stored document; None if it is not there, not ours, or too large to read before a submission."""
    return run_file.limited(LARGEST_FILE).known(run.where(run_file))


def _speed(summary: dict[str, Any], precision: Precision) -> EarlierRun | None:
    training = summary.get("training")
    first = training[0] if isinstance(training, list) and training else None
    dtype = first.get("dtype") if isinstance(first, dict) else None
    flops = _at(summary, "efficiency", "model_flops_per_s_per_device")
    if dtype != DTYPES[precision] or not isinstance(flops, int | float) or flops <= 0:
        return None
    return EarlierRun(str(_at(summary, "run", "job_id") or "?"), float(flops))


def _start_s(run: Run, summary: dict[str, Any]) -> float | None:
    """Seconds of the job that were no steps."""
    status = run.status()
    first = (summary.get("training") or [{}])[0]
    steps, step_ns = first.get("steps_total"), first.get("median_step_ns")
    if status is None or status.elapsed_ns is None or not steps or not step_ns:
        return None
    return max(0.0, (status.elapsed_ns - int(steps) * int(step_ns)) / 1e9)


def _at(content: object, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content
