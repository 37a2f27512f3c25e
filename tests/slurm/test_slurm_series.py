"""Many runs on a real Slurm: a sweep as an array whose driver is killed, a check whose runs share an allocation."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm.slurm_sh import REPOSITORY, SlurmSh
from tests.study.check_shared import git, repository
from tests.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.train]

WINDOW = {"skip_steps": 0, "wait_steps": 0, "warmup_steps": 1, "active_steps": 2, "seq_length": 64}


@pytest.fixture(scope="module")
def site(slurm_sh: SlurmSh) -> Path:
    return slurm_sh.site("series", defaults=WINDOW)


def records(slurm_sh: SlurmSh, series: str) -> list[dict[str, Any]]:
    """The records of a series' runs, by point."""
    found = [json.loads(path.read_text()) for path in slurm_sh.runs.glob("exercise_*/profiler/*/run.json")]
    mine = [record for record in found if record["part"] and record["part"]["series"] == series]
    return sorted(mine, key=lambda record: str(record["part"]["point"]))


def test_a_sweep_is_one_array_and_a_killed_driver_loses_and_repeats_nothing(slurm_sh: SlurmSh) -> None:
    file = slurm_sh.runs.parent / "seeds.yaml"
    _, site, _, script = slurm_sh.light("light-series", nodes=1, defaults=WINDOW)
    base = {"exercise": 1, "script": str(script)}
    asked = {"name": "seeds", "title": "x", "base": base, "matrix": {"seed": [1, 2]}}
    file.write_text(yaml.safe_dump(asked | {"show": ["step_time_median_ns"]}))
    words = ("bash", str(REPOSITORY / "slurm.sh"), "sweep", str(file), "--site", str(site), "--yes")
    with (slurm_sh.runs.parent / "driver").open("w") as output:
        driver = subprocess.Popen(
            words, env={**slurm_sh.slurm.env, **slurm_sh.env}, start_new_session=True,
            stdout=output, stderr=output,
        )  # fmt: skip
    said = slurm_sh.runs.parent / "driver"
    wait_until(lambda: len(records(slurm_sh, "seeds")) == 2 or driver.poll() is not None, "the array", said.read_text)
    assert driver.poll() is None, said.read_text()
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(timeout=limit_s())
    resumed = slurm_sh(*words[2:], "--json")
    assert resumed.returncode == 0, resumed.stderr
    runs = records(slurm_sh, "seeds")
    job = runs[0]["job_id"].split("_")[0]
    assert [run["job_id"] for run in runs] == [f"{job}_0", f"{job}_1"], "one array, and nothing was repeated"
    assert [run["status"]["state"] for run in runs] == ["completed", "completed"]


@pytest.mark.long
def test_the_runs_of_a_check_share_an_allocation(slurm_sh: SlurmSh, site: Path) -> None:
    words = ("check", "-e 1", "-e 1 --seed 7", "--runs", "2", "--json")
    checked = slurm_sh(*words, env={"HARNESS_SITE": str(site)})
    assert "Traceback" not in checked.stderr
    said = json.loads(checked.stdout)
    a, b = ([run["run"] for run in said[arm]["runs"]] for arm in ("a", "b"))
    job = a[0].split("-")[0]
    assert (a, b) == ([f"{job}-0", f"{job}-3"], [f"{job}-1", f"{job}-2"]), "what drifts hits both alike"


@pytest.mark.long
def test_two_revisions_of_a_repository_run_in_one_allocation_from_worktrees_beside_the_runs(
    slurm_sh: SlurmSh, site: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    commits = repository(project, 1, 1)
    words = ("check", "--rev", "main~1", "main", "run -g 1 --no-profile -- python3 train.py", "--runs", "2")
    argv = ["bash", str(REPOSITORY / "slurm.sh"), *words]
    env = {**slurm_sh.env, "HARNESS_SITE": str(site), "HARNESS_RUNS": str(tmp_path / "runs")}
    done = slurm_sh.slurm.run(*argv, check=False, seconds=300, env=env, cwd=project)
    assert "Traceback" not in done.stderr
    found = [json.loads(path.read_text()) for path in tmp_path.glob("runs/own/profiler/*/run.json")]
    assert sorted(each["program"]["git"]["commit"] for each in found) == sorted(commits * 2), done.stderr
    assert {each["status"]["state"] for each in found} == {"completed"}
    assert len({each["job_id"].split("-")[0] for each in found}) == 1
    assert all(each["experiment"]["start_in"].startswith(f"{tmp_path}/runs") for each in found)
    assert len(git(project, "worktree", "list").splitlines()) == 1


SLOW_NODE = """import os
import tests.faults.light_train as light

light.STEP_S = 0.3 if os.environ["SLURMD_NODENAME"] == "node2" else 0.1
print(os.environ.get("NCCL_ALGO"), os.environ["MASTER_ADDR"])
"""


def test_two_nodes_of_one_allocation_are_compared_and_a_variable_reaches_one_of_them(slurm_sh: SlurmSh) -> None:
    words = [*map(str, slurm_sh.light("light-nodes", nodes=1, defaults=WINDOW, fault=SLOW_NODE))]
    arms = ("--nodes", "node1", "node2", "--set", "NCCL_ALGO=Ring")
    done = slurm_sh("check", *arms, shlex.join(["-e", "1", "-n", "1", *words]), "--runs", "2", "--json")
    assert done.returncode == 1 and "the nodes of A and of B for all runs: twice that" in done.stderr, done.stderr
    said = json.loads(done.stdout)
    assert said["verdict"] == "worse" and said["b"]["treatment"] == "node2, NCCL_ALGO=Ring"
    found = records(slurm_sh, re.findall(r"check-[\w-]+", done.stderr)[0])
    assert len(found) == 4 and len({each["job_id"].split("-")[0] for each in found}) == 1
    for each in found:
        node, variable = ("node1", "None") if each["part"]["point"] == "a" else ("node2", "Ring")
        assert [status["host"] for status in each["nodes"]] == [node]
        log = next(slurm_sh.runs.glob(f"exercise_1_*/logs/{each['job_id']}/log.out"))
        assert [variable, node] == log.read_text().split()[:2]
