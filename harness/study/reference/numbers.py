"""The numbers of a variant: of several runs the median of each metric, and its row in a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from harness.analysis.metrics import Metrics, judged_step_ns
from harness.measure.references import Reference, StoredRun, StoredVariant, read_runs
from harness.study.reference.links import LARGEST


class Row(NamedTuple):
    """A variant in a table. Times in nanoseconds per step, memory in bytes; None: not measured."""

    variant: str
    command: str
    runs: int
    step_ns: int | None
    exposed_communication_share: float | None
    peak_memory_bytes: float | None
    tokens_per_s: float | None
    lessons: tuple[str, ...]


def shown_ns(run: StoredRun) -> float | None:
    """What a step of the run took: its median; of exercise 0 what its largest messages took."""
    return run.metrics.get("step_ns", run.metrics.get(LARGEST))


def judged_ns(run: StoredRun) -> float | None:
    """The time by which runs are judged: the mean step, in which also what comes in some steps only is seen."""
    return judged_step_ns(run.metrics) or shown_ns(run)


def medians(runs: Sequence[StoredRun]) -> Metrics:
    """Each metric's median over the runs, of those that all of them have."""
    first, *others = (run.metrics for run in runs)
    shared = [name for name in first if all(name in other for other in others)]
    return {name: median(run.metrics[name] for run in runs) for name in shared}


def rows(folder: Path, reference: Reference) -> list[Row]:
    """A row for each variant, in the list's order. Raises WorkError: a file is damaged."""
    return [_row(folder, variant) for variant in reference.variants]


def _row(folder: Path, variant: StoredVariant) -> Row:
    found = medians(read_runs(folder, variant).runs)
    return Row(
        variant=variant.name,
        command=variant.command,
        runs=variant.runs,
        step_ns=variant.step_ns,
        exposed_communication_share=found.get("exposed_communication_share"),
        peak_memory_bytes=found.get("peak_memory_bytes"),
        tokens_per_s=found.get("tokens_per_s"),
        lessons=variant.lessons,
    )
