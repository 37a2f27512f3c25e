"""Runs whose ranks are frozen by a real cgroup, or killed because it allows no more memory: what is said of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hang_kinds import line_of

from harness.common.heartbeats import live_folder
from tests.common.cgroups import V1, V2, cgroup
from tests.exercises.launching import ROOT
from tests.faults.processes import Process, processes_of
from tests.faults.scene import LOCAL_SITE
from tests.waiting import limit_s, wait_until

pytestmark = [pytest.mark.train, pytest.mark.long]

SCRIPT = ROOT / "tests" / "own" / "scripts" / "hangs.py"
STEP = 30
BOTH = pytest.mark.parametrize("version", [V1, V2])
KILLED = "the kernel killed it: the job used more memory than its cgroup allows"


@dataclass(frozen=True)
class Started:
    """A run of two ranks on this machine, which trains."""

    process: subprocess.Popen[str]
    path: Path
    log: Path

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What its monitor wrote."""
        files = live_folder(self.path).glob("*.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def rank(self, number: int) -> int:
        """The process of a rank."""
        return next(int(line["pid"]) for line in self.lines("rank") if line["rank"] == number)

    @property
    def step(self) -> int:
        """How far its ranks are."""
        beats = self.lines("beat")
        return min((rank[1] for rank in beats[-1]["ranks"]), default=0) if beats else 0

    def hang(self) -> dict[str, Any]:
        """What was found; empty: nothing."""
        file = live_folder(self.path) / "stuck.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def named(self, kind: str) -> dict[str, Any]:
        """What was found, once it is of this kind."""
        self.wait_for(lambda: self.hang().get("kind") == kind and self.hang()["until_ns"] is None, f"{kind} to be said")
        return self.hang()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Fails with what the run has said."""
        wait_until(condition, what, lambda: f"{self.hang()}\n{self.log.read_text()[-3000:]}", 300)

    def status(self) -> dict[str, Any]:
        """What the run says of itself."""
        return dict(json.loads((self.path / "status.json").read_text()))


@contextmanager
def started(folder: Path, *words: str, script: tuple[str, ...] = (), site: str = "local") -> Iterator[Started]:
    """Start a run of two ranks; at the end nothing of it is left."""
    argv = ["bash", str(ROOT / "slurm.sh"), "run", "-g", "2", "--no-profile", "--json", "--site", site, *words]
    environment = {**os.environ, "HARNESS_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*argv, "--", str(SCRIPT), *script], env=environment, stdout=log, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(lambda: list(folder.glob("runs/**/live/*.jsonl")), "the monitor", (folder / "log").read_text)
        yield Started(process, next(folder.glob("runs/**/live/*.jsonl")).parents[1], folder / "log")
    finally:
        wait_until(lambda: not list(map(killed, processes_of(folder / "runs"))), "the end of all that was started")
        process.wait(limit_s())


def killed(process: Process) -> Process:
    """The same process, to which the signal was sent."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    return process


@contextmanager
def training(folder: Path, *words: str) -> Iterator[Started]:
    """A run without an end, which is in its steps."""
    with started(folder, *words) as run:
        run.wait_for(lambda: run.step > STEP, "steps")
        yield run


@BOTH
def test_a_rank_that_is_frozen_while_it_trains_is_named(version: str, tmp_path: Path) -> None:
    with cgroup("freezer", version) as group, training(tmp_path) as run:
        group.add(run.rank(1))
        with group.frozen():
            found = run.named("frozen")
            assert (found["ranks"], found["waiting"]) == ([1], [0])
            assert "rank 0 waits in all_reduce (hangs.py:" in found["sentence"]
            assert "; rank 1 is frozen (cgroup) in hangs.py:" in found["sentence"]
            assert Path(found["place"][0]) == SCRIPT
            assert not run.lines("slept")
        before = run.step
        run.wait_for(lambda: run.hang()["until_ns"] and run.step > before, "the run to go on")
        assert run.hang()["found_ns"] == found["found_ns"]


@BOTH
def test_all_ranks_that_are_frozen_are_named(version: str, tmp_path: Path) -> None:
    with cgroup("freezer", version) as group, training(tmp_path) as run:
        for rank in (0, 1):
            group.add(run.rank(rank))
        with group.frozen():
            found = run.named("frozen")
            assert (found["ranks"], found["waiting"]) == ([0, 1], [])
            assert "ranks 0 and 1 are frozen (cgroup) in hangs.py:" in found["sentence"]


@BOTH
def test_a_job_that_is_frozen_with_its_monitor_is_suspended_and_not_stuck(version: str, tmp_path: Path) -> None:
    with cgroup("freezer", version) as group, training(tmp_path) as run:
        for each in processes_of(tmp_path / "runs"):
            group.add(each.pid)
        with group.frozen():
            time.sleep(35)  # longer than a hang takes to be told
        before = run.step
        run.wait_for(lambda: run.step > before + STEP, "the run to go on")
        assert [line["ns"] > 30e9 for line in run.lines("slept")] == [True]
        assert run.hang() == {}


@BOTH
def test_a_run_with_a_frozen_rank_is_ended_if_that_was_asked(version: str, tmp_path: Path) -> None:
    with cgroup("freezer", version) as group, training(tmp_path, "--on-hang", "stop") as run:
        rank = run.rank(1)
        group.add(rank)
        with group.frozen():
            run.wait_for(lambda: run.status()["state"] == "stuck", "the state stuck")
            assert "rank 1 is frozen (cgroup) in hangs.py:" in run.status()["why"]
        run.wait_for(lambda: not Path(f"/proc/{rank}").exists(), "the end of the rank, which has been killed")


@BOTH
@pytest.mark.parametrize("whose", ["the rank's", "the job's"])
def test_a_rank_that_uses_more_memory_than_its_cgroup_allows_is_first(version: str, whose: str, tmp_path: Path) -> None:
    """The rank is in a cgroup of its own, or all of the job is in one."""
    with cgroup("memory", version) as group:
        site, in_group = tmp_path / "here.yaml", ["--cgroup", str(group.path)]
        site.write_text(yaml.safe_dump(LOCAL_SITE))
        group.limit(256 << 20)
        if whose == "the job's":
            site.write_text(yaml.safe_dump({**LOCAL_SITE, "setup": [f"echo $$ >{group.path}/cgroup.procs"]}))
            group.limit(1536 << 20)
            in_group = []
        asked = ("--kind", "eats", "--rank", "1", "--step", str(STEP), *in_group)
        with started(tmp_path, script=asked, site=str(site)) as run:
            assert run.process.wait(limit_s(300)) == 1
            status = run.status()
    line = line_of(SCRIPT, "eats")
    assert status["state"] == "failed"
    assert status["why"].startswith(f"rank 1 failed first, in step {STEP}: {KILLED} (last seen at hangs.py:{line})")
