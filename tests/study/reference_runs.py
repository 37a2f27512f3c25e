"""Runs on disk as a recording leaves them, with numbers that a test chooses; training takes minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import (
    Collective,
    CollectivePhase,
    Device,
    Problem,
    Quality,
    RankSteps,
    RankTraining,
    RecordingVerdict,
    Steps,
    Summary,
    TraceSource,
)
from harness.experiment.exercises import Experiment, Training, as_recorded
from harness.run import Run
from harness.run.record import SeriesPart
from harness.site.site import Site, load_site
from harness.study.reference.record import ReferencePlan, StoredReference, keep, plan_recording
from harness.study.reference.variants import series_of
from tests.study.kit import completed

VERSIONS = {"python": "3.11.7", "torch": "2.13.0+cpu", "deepspeed": "0.19.8"}
MODELS = {1: "tiny-llama", 2: "tiny-mistral", 3: "tiny-mistral"}


def alone(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Runs and references are looked for in this folder only, and there is no GPU."""
    patch.setenv("HARNESS_RUNS", str(folder))
    patch.delenv("HARNESS_REFERENCES", raising=False)
    patch.setenv("CUDA_VISIBLE_DEVICES", "")
    patch.setattr("harness.study.reference.stored.SHIPPED", folder / "shipped")
    return folder


def summary_of(experiment: Experiment, step_ms: float, **more: Any) -> Summary:
    """A summary of two ranks. more: versions, all_reduce_bytes, doubts, device_kind, hosts, site, loading (share)."""
    ns, loading = round(step_ms * 1e6), more.get("loading", 0.03)
    resolved = experiment.model_dump(mode="json") | {"gpus_per_node": 2, "micro_batch_size": 2, "seq_length": 192}
    count, sent = more.get("all_reduce_count", 4), more.get("all_reduce_bytes", 4_000_000)
    kind = more.get("device_kind", "cpu")
    device = more.get("device", "AMD EPYC" if kind == "cpu" else "NVIDIA A100-SXM-64GB")
    findings = [
        Problem(severity=RecordingVerdict.DOUBTFUL, what=what, evidence="node1") for what in more.get("doubts", ())
    ]
    return Summary(
        run={
            "job_id": "1", "command": ["slurm.sh", "-e", "1"], "resolved": resolved,
            "site": {"name": more.get("site", "local")}, "user": "someone", "submit_host": "laptop-of-someone",
        },
        experiment=as_recorded(experiment),
        quality=Quality(problems=findings),
        world_size=2,
        hosts=list(more.get("hosts", ("laptop-of-someone",))),
        sources=[
            TraceSource(path=f"/home/someone/runs/x/torch/rank{rank}.json.gz", tool="kineto", rank=rank)
            for rank in range(2)
        ],
        steps=Steps(
            source="ProfilerStep", found=5, counted=5,
            per_rank=[RankSteps(rank=rank, durations_ns=[ns] * 5) for rank in range(2)],
        ),
        devices=[
            Device(
                rank=rank, device=0, name=device, source="x", device_kind=kind, gpu_events=9, kernels=9,
                window_ns=5 * ns, compute_ns=3 * ns, communication_ns=ns, exposed_communication_ns=ns,
                overlapped_communication_ns=0, memory_ns=0, exposed_memory_ns=0, idle_ns=ns,
            )
            for rank in range(2)
        ],
        collectives=[Collective(kind="all_reduce", count=count, ranks=2, bytes=sent, duration_ns=ns, mean_ns=ns)],
        collective_phases=[
            CollectivePhase(kind="all_reduce", phase="backward", count=10 * count, bytes=10 * sent, duration_ns=ns)
        ],
        training=[
            RankTraining(
                rank=rank, world_size=2, device=kind.replace("gpu", "cuda"), device_name=device,
                model=MODELS.get(int(experiment.exercise)), versions=more.get("versions", VERSIONS),
                data_fraction=loading, last_loss=6.9, parameters=1_000_000, dtype="float32",
                peak_memory_bytes=500_000_000,
            )
            for rank in range(2)
        ],
    )  # fmt: skip


def made_run(root: Path, experiment: Experiment, step_ms: float, part: SeriesPart | None = None, **more: Any) -> Run:
    """A completed run of the local site with a summary and two traces; `more` as in `summary_of`."""
    job_id = f"local-{len(list(root.glob('exercise_*/profiler/*'))) + 1}"
    site, summary = load_site(more.get("site", "local")), summary_of(experiment, step_ms, **more)
    record = {
        "backend": site.scheduler, "job": {"experiment": (summary.run or {})["resolved"]}, "user": "someone",
        "git": {"commit": more.get("commit", "0" * 40)}, "part": part.model_dump() if part else None,
        "submit_host": more.get("submit_host", "laptop-of-someone"),
    }  # fmt: skip
    run = completed(root, job_id, experiment, site, **record)
    if isinstance(experiment, Training):
        (run.path / "torch").mkdir()
        for rank in range(2):
            content = f"{job_id} rank {rank} ".encode() * 500
            (run.path / "torch" / f"rank{rank}.json.gz").write_bytes(content)
    run.summary.write_text(summary.model_dump_json(), encoding="utf-8")
    return run


# ---- A reference recorded from made-up runs: the plan, the store and the files are the product's own


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
