"""The slides' commands in real containers on a real Slurm of two nodes: the training inside, monitor and nsys outside."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.container.images import container
from tests.slurm.slurm_sh import SHORT, SlurmSh, Submitted, submitted
from tests.slurm.test_slurm_nsys import ranges
from tests.slurm.test_slurm_slides import DEFAULTS

pytestmark = [pytest.mark.slurm, pytest.mark.train]

SLIDES = {"-e 0": 2, "-e 1": 1, "-e 2 -n 2 -- --ds-no-overlap": 1, "-e 3 -n 2": 4}  # ranks per node
INSIDE = "/opt/packages/"  # where PyTorch is only inside


def site_of(slurm_sh: SlurmSh, ranks: int, **changes: object) -> Path:
    """A site whose trainings are in the container."""
    given = changes.pop("container", None) or container()
    return slurm_sh.site(
        f"boxed{ranks}", container=given, partition="gpu", gpus={"per_node": 4, "request": "gres"}, cpus_per_node=16,
        defaults=DEFAULTS | {"gpus_per_node": ranks}, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(slurm_sh: SlurmSh) -> dict[str, Submitted]:
    """All slides, submitted at once."""
    found = {}
    for command, ranks in SLIDES.items():
        done = slurm_sh("--json", *command.split(), env={"HARNESS_SITE": str(site_of(slurm_sh, ranks))})
        assert done.returncode == 0, done.stderr
        found[command] = submitted(done.stdout)
    return found


def finished(slurm_sh: SlurmSh, run: Submitted) -> Submitted:
    """The run, at its end."""
    state = slurm_sh.slurm.wait(run.job_id, timeout_s=900)
    assert state == "COMPLETED", (run.logs / "log.err").read_text()[-3000:]
    said = slurm_sh.status(run.job_id)
    assert (said["state"], said["missing"]) == ("completed", [])
    assert set(run.node_exits().values()) == {0}
    return run


@pytest.mark.parametrize("command", SLIDES)
def test_a_slide_runs_to_its_end_inside(
    slurm_sh: SlurmSh, runs: dict[str, Submitted], command: str
) -> None:
    run = finished(slurm_sh, runs[command])
    if command == "-e 0":
        assert run.read("comm/collectives.json")["results"]
        return
    assert INSIDE in (run.path / "lines" / "rank0.jsonl").read_text(), "it trained outside"
    hosts = {file.parent.name for file in run.path.glob("gpus-monitor/*/samples.csv")}
    assert hosts == set(run.node_exits())
    report = slurm_sh("report", run.job_id, "--json")
    assert report.returncode == 0, report.stderr
    world = json.loads(report.stdout)["world_size"]
    assert world == {"-e 1": 1, "-e 3 -n 2": 8}.get(command, 2)
    paraver = slurm_sh("paraver", run.job_id)
    assert paraver.returncode == 0, paraver.stderr
    assert list(run.path.rglob("*.prv"))
