"""Every command printed on the workshop's slides, typed as printed, submitted to a real Slurm, to the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.slurm.slurm_sh import REPOSITORY, SlurmSh, Submitted

pytestmark = [pytest.mark.slurm, pytest.mark.train]

SLIDES: list[str] = [
    slide["command"] for slide in yaml.safe_load((REPOSITORY / "tests/golden/slides.yaml").read_text())["slides"]
]
# The cluster's own defaults keep the window short; the commands stay verbatim. A job takes all CPUs of its node.
DEFAULTS = {"skip_steps": 0, "wait_steps": 0, "warmup_steps": 1, "active_steps": 1, "seq_length": 64}


@pytest.fixture(scope="module")
def runs(slurm_sh: SlurmSh, request: pytest.FixtureRequest) -> dict[str, Submitted]:
    """All chosen commands, submitted at once; Slurm decides the order."""
    chosen: list[str] = [
        str(item.callspec.params["command"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test_it_runs_to_the_end.__name__
    ]
    slurm_sh.slurm.run("scontrol", "create", "PartitionName=boost_usr_prod", "Nodes=ALL", "MaxTime=60")
    site = {exercise: site_for(slurm_sh, exercise) for exercise in range(4)}
    found = {}
    for command in chosen:
        words = command.split()
        its_site = site[int(words[words.index("-e") + 1])]
        found[command] = slurm_sh.run("--json", *words, env={"HARNESS_SITE": str(its_site)})
    return found


def site_for(slurm_sh: SlurmSh, exercise: int) -> Path:
    """Exercise 3 is tensor-parallel over four ranks; the others train with one rank a node here."""
    ranks = 4 if exercise == 3 else 1
    return slurm_sh.site(
        f"slides{exercise}", gpus={"per_node": 4, "request": "gres"}, cpus_per_node=16,
        defaults=DEFAULTS | ({"gpus_per_node": ranks}),
    )  # fmt: skip


@pytest.mark.long  # tests/container shows each exercise on Slurm, test_slides_golden.py the script of each slide
@pytest.mark.parametrize("command", SLIDES)
def test_it_runs_to_the_end(slurm_sh: SlurmSh, runs: dict[str, Submitted], command: str) -> None:
    run = runs[command]
    assert slurm_sh.slurm.wait(run.job_id) == "COMPLETED", (run.logs / "log.err").read_text()[-3000:]
    said = slurm_sh.status(run.job_id)
    assert said["state"] == "completed"
    assert said["missing"] == []
    assert set(run.node_exits().values()) == {0}
    if "--nsys2prv" in command:
        assert list(run.path.rglob("*.prv")), (run.logs / "log.err").read_text()[-3000:]
    if command == "-e 0":
        assert "not available here" in (run.logs / "log.out").read_text()


# Long: it trains twice more over both nodes; the way to the answer is that of the lessons' other tests.
@pytest.mark.long
def test_hpz_keeps_traffic_inside_the_node(slurm_sh: SlurmSh) -> None:
    """Lesson 2c over a network of 100 Mbit/s: the answer comes from the two runs, as a student's would. How much
    the step gains is a measurement, and no test's claim."""
    site = slurm_sh.site(
        "slow-link", gpus={"per_node": 2, "request": "none"}, cpus_per_node=16,
        defaults={"skip_steps": 1, "wait_steps": 0, "warmup_steps": 1, "active_steps": 3},
    )  # fmt: skip
    slurm_sh.slurm.set_rate("100mbit")
    try:
        for partition in ("4", "2"):
            words = ("-e", "2", "-n", "2", "-g", "2", "--", "--ds-hpz-partition", partition)
            slurm_sh.run("--site", site, "--wait", "--json", *words)
    finally:
        slurm_sh.slurm.set_rate("none")
    answer = slurm_sh("lesson", "2c", "--answer", "--json", "--site", site)
    assert answer.returncode == 0, answer.stderr
    fewer_bytes, faster = json.loads(answer.stdout)["answers"]
    assert fewer_bytes["outcome"] == "yes", "no load changes the bytes"
    assert faster["outcome"]
