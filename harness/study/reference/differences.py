"""Which of a variant's numbers changed that do not depend on the load. Knows no run on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.analysis.summary import problem_texts
from harness.study.reference.stored import Environment, StoredRun

# What the program does, whatever else runs on the machine. Peak memory of a process does depend on it.
COUNTED = re.compile(r"\w+_(count|bytes)|bytes_across_nodes|tokens_per_step|microbatches|expected_bubble")
MEASURED_MEMORY = "peak_memory_bytes"
SAME = 1e-6  # relative: counts per step are means
# A collective at the window's edge may be counted in one run only: 25 millionths were seen between two equal runs.
AT_EDGES = {"bytes_across_nodes": 1e-3}
MEMORY_SHARE = 0.05
LOSS_SHARE = 0.01
PRECISION = re.compile(r"gemm_(\w+)_share")
PRECISION_SHARE = 0.05  # of the time of matrix products


Pair = tuple[float | None, float | None]  # stored and new; None: not there


def changed_metrics(stored: Sequence[StoredRun], new: Sequence[StoredRun], on_gpu: bool) -> dict[str, Pair]:
    """The counts, bytes, precisions, losses and (on GPUs) peaks of memory that moved out of the stored runs' range:
    what does not depend on the load."""
    names = dict.fromkeys(name for run in (*stored, *new) for name in run.metrics)
    return {name: pair for name in names if (pair := _moved(name, stored, new, on_gpu)) is not None}


def _moved(name: str, stored: Sequence[StoredRun], new: Sequence[StoredRun], on_gpu: bool) -> Pair | None:
    slack = _slack(name, on_gpu)
    if slack is None:
        return None
    arms = [stored, new]
    if COUNTED.fullmatch(name):  # where ranks counted unlike steps, a count per step is a mean over unlike ones
        arms = [[run for run in arm if problem_texts.UNEVEN not in run.doubts] for arm in arms]
    if not all(arms):
        return None
    before, now = ([run.metrics[name] for run in arm if name in run.metrics] for arm in arms)
    if not before or not now:
        return (before[0] if before else None, now[0] if now else None)
    absolute = slack if PRECISION.fullmatch(name) else slack * max(map(abs, (*before, *now)))
    low, high = min(before) - absolute, max(before) + absolute
    outside = [value for value in now if not low <= value <= high]
    return (before[0], outside[0]) if len(outside) == len(now) else None


def _slack(name: str, on_gpu: bool) -> float | None:
    """By how much a metric may leave the stored runs' range; None: it depends on the load."""
    if name == MEASURED_MEMORY:
        return MEMORY_SHARE if on_gpu else None
    if name == "last_loss":
        return LOSS_SHARE
    if PRECISION.fullmatch(name):
        return PRECISION_SHARE
    return AT_EDGES.get(name, SAME) if COUNTED.fullmatch(name) else None


def environment_key(environment: Environment) -> dict[str, str]:
    """What two runs must share for their times to be judged: name -> value."""
    hardware = environment.hardware
    found = {
        "device": hardware.device,
        "cores": None if hardware.cores is None else str(hardware.cores),
        "machine": hardware.machine,
        "container": environment.container,
        **environment.software,
    }
    return {name: value for name, value in found.items() if value is not None}
