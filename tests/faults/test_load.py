"""Many at once: submissions from one checkout, and a job array of which a task is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.fault import Fault, Setting, nothing
from tests.faults.play import Stage
from tests.faults.scene import ROOT, Scene
from tests.faults.verdict import ask

pytestmark = [pytest.mark.slurm, pytest.mark.train]

POINTS = 4


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as opened:
        yield opened


def scene(stage: Stage, name: str, setting: Setting) -> Scene:
    """A place for many runs on a cluster of its own."""
    fault = Fault(name, "", nothing, "completed", "", "", "", where=("slurm",), setting=setting)
    made = Scene(fault, "slurm", stage.folder / name, stage.cluster())
    made.runs.mkdir(parents=True)
    made.marks.mkdir()
    stage.scenes.append(made)
    return made


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.long)])
def test_submissions_at_the_same_moment_are_all_recorded_each_under_its_own_name(
    stage: Stage, count: int, record_property: Any
) -> None:
    """Held in the queue: what is shown is the submitting, not two hundred trainings."""
    here = scene(stage, f"load-{count}", Setting(site={"sbatch": ["--hold"]}))
    words = here.argv(*here.launch_words(), "--json")

    def submitted(_number: int) -> dict[str, str]:
        done = subprocess.run(
            words, cwd=ROOT, env=here.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said: dict[str, str] = json.loads(done.stdout)
        return said

    began = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        said = list(pool.map(submitted, range(count)))
    record_property("seconds", round(time.monotonic() - began, 1))
    assert here.slurm is not None
    queued = here.slurm.run("squeue", "--noheader", "--format=%i").stdout.split()
    records = [json.loads((path / "run.json").read_text()) for path in here.found()]
    listed = json.loads(ask(here.environment, "ls", "-n", str(count), "--json").out)
    for ids in (
        [each["job_id"] for each in said],
        [record["job_id"] for record in records],
        [row["job_id"] for row in listed if row["state"] == "queued"],
    ):
        assert sorted(ids) == sorted(queued)
    assert len(set(queued)) == len({each["path"] for each in said}) == count
    assert not list(here.runs.glob("*/profiler/.staging*")), "nothing half is left"


@pytest.mark.long
def test_a_killed_task_of_an_array_is_missing_in_the_result_and_made_again(stage: Stage) -> None:
    """`sweep` again, with `--retry-failed`, is how a series is resumed."""
    here = scene(stage, "array", Setting(training="at('window', lambda rank: time.sleep(4))"))
    file = here.folder / "seeds.yaml"
    asked = {"name": "seeds", "title": "x", "base": {"exercise": 1, "script": str(here.script())}}
    more = {"zip": {"seed": list(range(1, POINTS + 1))}, "show": ["step_time_median_ns"]}
    file.write_text(yaml.safe_dump(asked | more))
    words = ("sweep", str(file), "--site", str(here.site()))
    drive = [*here.argv(*words, "--yes", "--json")]
    with (here.folder / "said").open("w") as said:
        driver = subprocess.Popen(drive, cwd=ROOT, env=here.environment, stdout=said, stderr=said)
    here.until(lambda: len(list(here.marks.glob("*.window"))) == POINTS, "every task at work")
    victim = random.Random(5).choice(sorted(here.marks.glob("*.window")))  # no secret
    os.kill(int(victim.read_text()), signal.SIGKILL)
    assert driver.wait(timeout=300) == 1, (here.folder / "said").read_text()
    told = (here.folder / "said").read_text()
    assert re.search(r"^failed: .*seed=", told, re.MULTILINE), told
    assert re.search(r"^make them again: .* --retry-failed", told, re.MULTILINE), told
    standing = ask(here.environment, *words, "--status")
    assert "1 failed" in standing.text, standing.text
    assert states(here) == ["completed"] * (POINTS - 1) + ["failed"]
    again = ask(here.environment, *words, "--yes", "--retry-failed")
    assert again.code == 0, again.text
    assert states(here) == ["completed"] * POINTS + ["failed"], "one more run, and nothing was repeated"


def states(here: Scene) -> list[str]:
    records = [json.loads((Path(path) / "run.json").read_text()) for path in here.found()]
    return sorted(record["status"]["state"] for record in records)
