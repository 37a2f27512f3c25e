"""A reference recorded from made-up runs: the plan, the store and the files are the product's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.site.site import Site, load_site
from harness.study.reference.record import ReferencePlan, StoredReference, keep, plan_recording
from harness.study.reference.variants import series_of
from tests.study.reference_runs import made_run

TWO = """
name: two
title: Loading data in two ways
device: cpu
variants:
  - {name: plain, lessons: [1a], asks: {exercise: 1, gpus_per_node: 2}}
  - {name: slow, lessons: [1a], asks: {exercise: 1, gpus_per_node: 2, slow_dataloading: true}}
"""
STEPS_MS = {"plain": 100.0, "slow": 180.0}
NOISE = (1.0, 1.01, 0.99, 1.005)  # of the runs of a variant


def two(folder: Path) -> str:
    """A list of two variants, as a file."""
    path = folder / "two.yaml"
    path.write_text(TWO, encoding="utf-8")
    return str(path)


def plan(root: Path, name: str = "ref", repeats: int = 4, site: Site | None = None) -> ReferencePlan:
    return plan_recording(name, two(root), repeats, site or load_site("local"))


def run_all(root: Path, recording: ReferencePlan, factor: float = 1.0, **more: Any) -> None:
    """Every run of a recording; `more` as in `summary_of`."""
    for task in recording.tasks:
        point = task.point
        step_ms = STEPS_MS[point.key] * NOISE[point.repeat] * factor
        loading = 0.4 if point.key == "slow" else 0.03
        made_run(root, point.experiment, step_ms, point.part(series_of(recording.name)), **{"loading": loading} | more)


def recorded(root: Path, name: str = "ref", factor: float = 1.0, **more: Any) -> StoredReference:
    """A complete reference of two variants with four runs each."""
    recording = plan(root, name)
    run_all(root, recording, factor, **more)
    return keep(recording)
