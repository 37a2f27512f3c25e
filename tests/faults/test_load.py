"""Many submissions at once, from one checkout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.fault import Fault, Setting, nothing
from tests.faults.play import Stage
from tests.faults.scene import ROOT, Scene
from tests.faults.verdict import ask
from tests.slurm.slurm_cluster import Slurm
from tests.waiting import limit_s

pytestmark = [pytest.mark.slurm, pytest.mark.train]


@pytest.fixture
def held(slurm: Slurm) -> Iterator[Scene]:
    """A place whose jobs are held in the queue: what is shown is the submitting, not two hundred trainings."""
    held_in_queue = Setting(site={"sbatch": ["--hold"]})
    fault = Fault("load", "", nothing, "completed", "", "", "", where=("slurm",), setting=held_in_queue)
    with Stage(lambda: slurm) as stage:
        scene = Scene(fault, "slurm", stage.folder / "load", slurm)
        scene.runs.mkdir(parents=True)
        scene.marks.mkdir()
        stage.scenes.append(scene)
        yield scene


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.long)])
def test_submissions_at_the_same_moment_are_all_recorded_each_under_its_own_name(held: Scene, count: int) -> None:
    words = held.argv(*held.launch_words(), "--json")

    def submitted(_number: int) -> dict[str, str]:
        done = subprocess.run(
            words, cwd=ROOT, env=held.environment, capture_output=True, text=True, check=False, timeout=limit_s(200)
        )
        assert done.returncode == 0, done.stderr
        said: dict[str, str] = json.loads(done.stdout)
        return said

    with ThreadPoolExecutor(count) as pool:
        said = list(pool.map(submitted, range(count)))
    queued = held.jobs()
    records = [json.loads((path / "run.json").read_text()) for path in held.found()]
    listed = json.loads(ask(held.environment, "ls", "-n", str(count), "--json").out)
    for ids in (
        [each["job_id"] for each in said],
        [record["job_id"] for record in records],
        [row["job_id"] for row in listed if row["state"] == "queued"],
    ):
        assert sorted(ids) == sorted(queued)
    assert len(set(queued)) == len({each["path"] for each in said}) == count
    assert not list(held.runs.glob("*/profiler/.staging*")), "nothing half is left"
