"""Hangs, deaths and lost nodes of a training over the two nodes of a real Slurm: who is named, at which line, how the
run ends, and that nothing is left. Nodes that are silent because Slurm has suspended the job are not lost."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hang_kinds import HANGS, WITHOUT_STACK, lines_of

from tests.slurm.slurm_sh import REPOSITORY, SlurmSh, Submitted
from tests.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.train]

SCRIPT = REPOSITORY / "tests" / "own" / "scripts" / "hangs.py"
IN_CI = ("fifo",)  # the others are long: other causes, which tests/own has without Slurm
STEP = 30
SUSPENDED_S = 25  # longer than a node may be silent


def started(slurm_sh: SlurmSh, tag: str, *options: str, per_node: int = 1, kind: str = "", code: int = 0) -> Submitted:
    """A run over both nodes. kind: what the second node's first rank does in step 30; without one it has no end."""
    gpus = {"per_node": per_node, "request": "none"}
    site = slurm_sh.site("hangs", env={"GLOO_SOCKET_IFNAME": "eth0"}, gpus=gpus)
    words = ("run", "-n", "2", "-g", str(per_node), "--site", str(site), "--json", "--no-profile", *options)
    asked = ("--kind", kind, "--rank", str(per_node), "--step", str(STEP)) if kind else ()
    command = ("--", str(SCRIPT), "--tag", tag, *asked)
    return slurm_sh.run(*words, *command, code=code, seconds=300, cwd=SCRIPT.parent)


def wait_for_the_end_of_all(tag: str) -> None:
    """Returns when none of the training's processes lives."""
    wait_until(lambda: not _processes(tag), "the end of the training's processes", lambda: _processes(tag))


def _processes(tag: str) -> str:
    words = ["pgrep", "-fa", f"tag {tag}"]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s()).stdout


@pytest.mark.parametrize("per_node", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in IN_CI else pytest.mark.long)
        for kind in HANGS
        if HANGS[kind] != "computes"
    ],
)
def test_a_hang_is_named_and_ended(slurm_sh: SlurmSh, kind: str, per_node: int) -> None:
    tag = f"slurm-{kind}-{time.time_ns()}"
    run = started(slurm_sh, tag, "--wait", "--on-hang", "stop", per_node=per_node, kind=kind, code=1)
    assert run.read("status.json")["state"] == "stuck"
    found = run.read("live/stuck.json")
    assert found["kind"] == HANGS[kind]
    assert per_node in found["ranks"]
    lines = lines_of(SCRIPT, kind)
    if kind in WITHOUT_STACK:
        assert "last seen at hangs.py:" in found["sentence"]
    else:
        assert any(f"hangs.py:{line}" in found["sentence"] for line in lines), found["sentence"]
    # Else both may be wrong, and the place is that of the other one.
    if found["ranks"] == [per_node] and kind not in WITHOUT_STACK:
        assert (Path(found["place"][0]).name, found["place"][1] in lines) == ("hangs.py", True)
    wait_for_the_end_of_all(tag)


@dataclass(frozen=True)
class Trains:
    """A run over both nodes without an end: rank 0 on node1, rank 1 on node2."""

    slurm_sh: SlurmSh
    run: Submitted
    tag: str

    def step(self, node: str) -> int:
        """How far the node's rank is."""
        file = self.run.path / "live" / f"{node}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        beats = [line["ranks"] for line in lines if line["event"] == "beat" and line["ranks"]]
        return int(beats[-1][0][1]) if beats else 0

    def finding(self, kind: str) -> dict[str, Any]:
        """What `watch` says, once it says something of this kind."""
        wait_until(lambda: kind in self.findings(), f"a finding of the kind {kind}", self.said)
        return self.findings()[kind]

    def findings(self) -> dict[str, dict[str, Any]]:
        """What `watch` says now, by kind."""
        return {note["kind"]: note for note in self.watched()["findings"]}

    def watched(self) -> dict[str, Any]:
        """The run as `watch --json` has it."""
        done = self.slurm_sh("watch", self.run.job_id, "--once", "--json")
        return dict(json.loads(done.stdout))

    def ended(self) -> str:
        """Wait for Slurm's end of the job; returns its word."""
        word = self.slurm_sh.slurm.wait(self.run.job_id)
        wait_for_the_end_of_all(self.tag)
        return word

    def said(self) -> str:
        """What `watch` and Slurm say of it."""
        return f"{self.watched()}\n{self.slurm_sh.slurm.about(self.run.job_id)}"

    def listed(self) -> str:
        """The state that `ls` prints."""
        return str(json.loads(self.slurm_sh("ls", "--json").stdout)[0]["state"])


def trains(slurm_sh: SlurmSh, *options: str) -> Trains:
    """Start it, and wait for its steps."""
    tag = f"gone-{time.time_ns()}"
    made = Trains(slurm_sh, started(slurm_sh, tag, *options), tag)
    slurm_sh.wait_while_it_runs(made.run, lambda: min(map(made.step, ("node1", "node2"))) > STEP, "steps of both ranks")
    return made


def check_node_fail(made: Trains, node: str) -> None:
    """It ends as a run whose node failed, for every command, and that is written down."""
    assert made.ended() == "NODE_FAIL"
    said = made.slurm_sh.status(made.run.job_id)
    assert said["state"] == "node_fail"
    assert said["reason"].startswith(f"one of its nodes failed: submit it again; node {node} has not reported since ")
    assert made.listed() == "node_fail"
    assert made.run.read("status.json")["state"] == "node_fail"


@pytest.mark.long
def test_a_node_that_loses_power_is_named_with_its_rank_and_who_waits(slurm_sh_own: SlurmSh) -> None:
    made = trains(slurm_sh_own)
    slurm_sh_own.slurm.lose(2)
    assert made.finding("node")["sentence"].startswith("Node node2 with rank 1 has not reported since ")
    said = made.finding("stuck")["sentence"]
    assert "rank 0 waits in all_reduce (hangs.py:" in said
    assert "; node node2 with rank 1 has not reported since " in said
    hang = made.run.read("live/stuck.json")
    assert (hang["kind"], hang["ranks"], hang["waiting"]) == ("node gone", [1], [0])
    reason = slurm_sh_own.status(made.run.job_id)["reason"]
    assert "node node2 with rank 1 has not reported since " in reason or "it is ending" in reason
    check_node_fail(made, "node2 with rank 1")


@pytest.mark.long
def test_a_node_whose_processes_all_end_is_first_and_not_who_lost_the_connection(slurm_sh_own: SlurmSh) -> None:
    made = trains(slurm_sh_own)
    slurm_sh_own.slurm.lose(2, silently=False)
    wait_until(
        lambda: "Node node2 with rank 1" in made.finding("failed")["sentence"], "the node to be first", made.said
    )
    said = made.finding("failed")["sentence"]
    assert said.startswith("Node node2 with rank 1 has not reported since ")
    assert said.endswith(", and the other ranks lost their connection to it.")
    check_node_fail(made, "node2 with rank 1")


@pytest.mark.long
def test_the_first_node_is_named_too_although_nobody_is_left_who_judges(slurm_sh_own: SlurmSh) -> None:
    made = trains(slurm_sh_own)
    slurm_sh_own.slurm.lose(1)
    assert made.finding("node")["sentence"].startswith("Node node1 with rank 0 has not reported since ")
    check_node_fail(made, "node1 with rank 0")


@pytest.mark.long
def test_a_run_that_is_stopped_because_a_node_is_gone_is_stuck_for_every_command(slurm_sh_own: SlurmSh) -> None:
    made = trains(slurm_sh_own, "--on-hang", "stop")
    slurm_sh_own.slurm.lose(2)
    assert made.ended() == "NODE_FAIL"
    wait_until(lambda: made.run.read("status.json")["state"] == "stuck", "the state of the run", made.said)
    said = slurm_sh_own.status(made.run.job_id)
    assert said["state"] == made.listed() == "stuck"
    assert "; node node2 with rank 1 has not reported since " in said["reason"]


@pytest.mark.long
def test_nodes_of_a_suspended_job_are_silent_and_not_gone(slurm_sh: SlurmSh) -> None:
    made = trains(slurm_sh)
    job = made.run.job_id
    try:
        slurm_sh.slurm.run("scontrol", "suspend", job)
        wait_until(
            lambda: min(node["age_s"] for node in made.watched()["nodes"]) > SUSPENDED_S, "the time to pass", made.said
        )
        said = made.watched()
        assert (said["state"], "has suspended it" in said["reason"], said["findings"]) == ("running", True, [])
        slurm_sh.slurm.run("scontrol", "resume", job)
        before = max(map(made.step, ("node1", "node2")))
        slurm_sh.wait_while_it_runs(
            made.run, lambda: min(map(made.step, ("node1", "node2"))) > before + STEP, "the training to go on"
        )
        assert not (made.run.path / "live" / "stuck.json").exists()
        assert not {"node", "stuck", "failed"} & set(made.findings())
    finally:
        slurm_sh.slurm.run("scancel", job, check=False)
    made.ended()
