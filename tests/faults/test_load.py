"""Many at once: submissions from one checkout, and a job array of which a task is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.fault import Fault, Setting, nothing
from tests.faults.light_train import GO
from tests.faults.play import Stage
from tests.faults.scene import LIMIT_S, ROOT, Scene
from tests.faults.verdict import Said, ask
from tests.slurm.slurm_cluster import Slurm
from tests.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.train]

POINTS = 4


@pytest.fixture(scope="module")
def stage(slurm: Slurm) -> Iterator[Stage]:
    with Stage(lambda: slurm) as opened:
        yield opened


def scene(stage: Stage, name: str, setting: Setting) -> Scene:
    """A place for many runs on the session's cluster."""
    fault = Fault(name, "", nothing, "completed", "", "", "", where=("slurm",), setting=setting)
    made = Scene(fault, "slurm", stage.folder / name, stage.common())
    made.runs.mkdir(parents=True)
    made.marks.mkdir()
    stage.scenes.append(made)
    return made


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.long)])
def test_submissions_at_the_same_moment_are_all_recorded_each_under_its_own_name(stage: Stage, count: int) -> None:
    """Held in the queue: what is shown is the submitting, not two hundred trainings."""
    here = scene(stage, f"load-{count}", Setting(site={"sbatch": ["--hold"]}))
    words = here.argv(*here.launch_words(), "--json")

    def submitted(_number: int) -> dict[str, str]:
        done = subprocess.run(
            words, cwd=ROOT, env=here.environment, capture_output=True, text=True, check=False, timeout=limit_s(200)
        )
        assert done.returncode == 0, done.stderr
        said: dict[str, str] = json.loads(done.stdout)
        return said

    with ThreadPoolExecutor(count) as pool:
        said = list(pool.map(submitted, range(count)))
    queued = here.jobs()
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


class Driver:
    """A command that starts several runs and waits for them: each waits in its window, until told to go on."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.scene = scene(stage, name, Setting(training="hold_for_go('window')"))
        self._output = self.scene.folder / "said"

    def start(self, *words: str) -> None:
        with self._output.open("w") as said:
            self._process = subprocess.Popen(
                self.scene.argv(*words), cwd=ROOT, env=self.scene.environment, stdout=said, stderr=said
            )

    def sweep(self) -> tuple[str, ...]:
        """The words that start, or resume, a sweep of `POINTS` points."""
        file = self.scene.folder / "seeds.yaml"
        asked = {"name": "seeds", "title": "x", "base": {"exercise": 1, "script": str(self.scene.script())}}
        more = {"zip": {"seed": list(range(1, POINTS + 1))}, "show": ["step_time_median_ns"]}
        file.write_text(yaml.safe_dump(asked | more))
        return ("sweep", str(file), "--site", str(self.scene.site()))

    def at_work(self, count: int) -> list[Path]:
        """Wait until so many runs are in their windows; the files that say so hold their process's number."""

        def at_work() -> list[Path]:
            return sorted(self.scene.marks.glob("*.window"))

        wait_until(
            lambda: len(at_work()) == count or self._process.poll() is not None,
            f"{count} runs at work",
            lambda: self._output.read_text() + self.scene.heard(),
            LIMIT_S,
        )
        assert len(at_work()) == count, f"the command ended before\n{self._output.read_text()}"
        return at_work()

    def end(self) -> tuple[int, str]:
        """All go on; then its exit code, and what it said."""
        (self.scene.marks / GO).touch()
        code = self._process.wait(timeout=limit_s(LIMIT_S))
        return code, self._output.read_text()

    def ask(self, *words: str) -> Said:
        return ask(self.scene.environment, *words)

    def states(self) -> list[str]:
        """What `ls` says of all of its runs."""
        rows = json.loads(self.ask("ls", "-n", "20", "--json").out)
        return sorted(row["state"] for row in rows)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads((Path(path) / "run.json").read_text()) for path in self.scene.found()]


@pytest.mark.long
def test_a_killed_task_of_an_array_is_missing_in_the_result_and_made_again(stage: Stage) -> None:
    """`sweep` again, with `--retry-failed`, is how a series is resumed."""
    driver = Driver(stage, "array-killed")
    words = driver.sweep()
    driver.start(*words, "--yes", "--json")
    victim = random.Random(5).choice(driver.at_work(POINTS))  # no secret
    os.kill(int(victim.read_text()), signal.SIGKILL)
    code, told = driver.end()
    assert code == 1, told
    assert re.search(r"^failed: .*seed=", told, re.MULTILINE), told
    assert re.search(r"^repeat the failed runs: .* --retry-failed", told, re.MULTILINE), told
    status = driver.ask(*words, "--dry-run")
    assert "1 failed" in status.text, status.text
    assert driver.states() == ["completed"] * (POINTS - 1) + ["failed"]
    again = driver.ask(*words, "--yes", "--retry-failed")
    assert again.code == 0, again.text
    assert driver.states() == ["completed"] * POINTS + ["failed"], "one more run, and nothing was repeated"


@pytest.mark.long
def test_a_cancelled_task_of_an_array_ends_alone(stage: Stage) -> None:
    driver = Driver(stage, "array-cancelled")
    driver.start(*driver.sweep(), "--yes", "--json")
    driver.at_work(POINTS)
    job = driver.records()[0]["job_id"]
    cancelled = driver.ask("cancel", job)
    assert cancelled.code == 0, cancelled.text
    code, told = driver.end()
    assert code == 1, told
    assert driver.states() == ["cancelled"] + ["completed"] * (POINTS - 1)
    assert "cancelled" in driver.ask("status", job).out


def test_a_cancelled_run_of_an_allocation_names_the_others_that_end_with_it(stage: Stage) -> None:
    driver = Driver(stage, "allocation-cancelled")
    own = f"-e 1 --script {driver.scene.script()}"
    driver.scene.env["HARNESS_SITE"] = str(driver.scene.site())
    driver.start("check", own, f"{own} --seed 7", "--runs", "2")
    driver.at_work(1)
    job, *others = sorted(record["job_id"] for record in driver.records())
    cancelled = driver.ask("cancel", job)
    assert cancelled.code == 0, cancelled.text
    assert all(other in cancelled.text for other in others), cancelled.text
    code, told = driver.end()
    assert code == 3, told
    assert driver.states() == ["cancelled"] * 4
