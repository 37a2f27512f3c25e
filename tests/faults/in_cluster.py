"""Faults of the cluster under a run: daemons killed, nodes down, the network cut. Each has a cluster of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.fault import SLURM, Fault, Setting
from tests.faults.in_disk import waits, when
from tests.faults.in_job import in_window
from tests.faults.in_queue import quick_kills, scontrol
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.processes import is_alive
from tests.faults.scene import Scene
from tests.waiting import limit_s, wait_until

WHOLE = (METRICS, TRACES, "status.json")
REPORT = "slurm.sh report RUN"
SHORT = Setting(steps=20, own=True)


def killed(scene: Scene, daemon: str, number: signal.Signals = signal.SIGKILL) -> int:
    pid = scene.daemon(daemon)
    os.kill(pid, number)
    wait_until(lambda: not is_alive(pid), f"the end of {daemon}", scene.slurm.logs)
    return pid


def controller_restarted(scene: Scene) -> None:
    killed(scene, "slurmctld")
    time.sleep(1)  # the fault: the cluster is without it for a while
    scene.slurm.run("slurmctld")


def run_has_ended(scene: Scene) -> None:
    status = scene.path / "status.json"
    scene.until(lambda: json.loads(status.read_text())["state"] != "running", "the run's own end")


def controller_down_at_the_end(scene: Scene) -> None:
    killed(scene, "slurmctld", signal.SIGTERM)
    run_has_ended(scene)
    said = scene.harness("status", str(scene.path), "--json")
    assert json.loads(said.stdout)["state"] == "completed", said
    scene.slurm.run("slurmctld")


def accounts_down(scene: Scene) -> None:
    killed(scene, "slurmdbd")


def munge_down_for_a_while(scene: Scene) -> None:
    """Nobody can say who he is: no command of Slurm is answered, and no step can end."""
    killed(scene, "munged", signal.SIGTERM)
    said = scene.harness("status", str(scene.path), "--json")
    assert "the last state that the job wrote: running" in said.stdout, said
    root = scene.slurm.root
    scene.slurm.run(
        "munged", "--force", "--num-threads=2", f"--key-file={root}/etc/munge.key", f"--socket={root}/run/munge.sock",
        f"--pid-file={root}/run/munged.pid", f"--log-file={root}/log/munged.log", f"--seed-file={root}/run/munge.seed",
    )  # fmt: skip


def slurmd_of(scene: Scene, node: str, *words: str) -> None:
    """A command in a node's own network, with its host name and its files."""
    scene.slurm.run("nsenter", f"--target={scene.daemon(f'slurmd-{node}')}", "--uts", "--net", "--mount", *words)


def slurmd_restarted(scene: Scene) -> None:
    """As a package update does it: the node's steps go on without it."""
    pid = scene.daemon("slurmd-node1")
    # It holds the node's network while no slurmd does.
    keeper = subprocess.Popen(
        ["nsenter", f"--target={pid}", "--uts", "--net", "--mount", "sleep", "600"], env=scene.slurm.env
    )
    try:
        there = Path(f"/proc/{pid}/ns/net").readlink()
        wait_until(lambda: Path(f"/proc/{keeper.pid}/ns/net").readlink() == there, "the keeper of the node's network")
        killed(scene, "slurmd-node1")
        node = ("nsenter", f"--target={keeper.pid}", "--uts", "--net", "--mount")
        scene.slurm.run(*node, "slurmd", "-N", "node1")
    finally:
        keeper.kill()
        keeper.wait(timeout=limit_s())


def slurmd_killed(scene: Scene) -> None:
    killed(scene, "slurmd-node1")
    scene.until(lambda: scene.job()["JobState"] == "NODE_FAIL", "the controller to miss the node")
    wait_until(lambda: not scene.processes(), "the run's own end: it knows nothing of that", scene.heard)


def step_daemon_killed(scene: Scene) -> None:
    """The processes that Slurm keeps beside each of a job's steps."""
    mark = f"SLURM_CONF={scene.slurm.root}/etc/slurm.conf".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            mine = mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine and words.startswith(f"slurmstepd: [{scene.job_id}.0]".encode()):
            os.kill(int(folder.name), signal.SIGKILL)
            quick_kills(scene)
            scontrol("update", "JobId={job}", "EndTime=now")(scene)
            return
    raise AssertionError("no step daemon was found")


def node_is(state: str) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.slurm.run("scontrol", "update", "nodename=node1", f"state={state}", "reason=test")

    return change


def host_renamed(scene: Scene) -> None:
    slurmd_of(scene, "node1", "hostname", "renamed")


def cable(scene: Scene, state: str) -> None:
    bridge = (scene.slurm.root / "run" / "bridge").read_text().strip()
    scene.slurm.run("ip", "link", "set", f"{bridge}-2", state)


def network_cut(scene: Scene) -> None:
    scene.training_pid(0)
    cable(scene, "down")
    scene.until(lambda: scene.job()["JobState"] == "NODE_FAIL", "the controller to miss the node")
    cable(scene, "up")


def network_cut_for_a_while(scene: Scene) -> None:
    scene.training_pid(0)
    cable(scene, "down")
    time.sleep(5)  # the fault: the network is cut for so long
    cable(scene, "up")


def node_gone(scene: Scene) -> None:
    scene.training_pid(1)
    assert scene.slurm is not None
    scene.slurm.lose(2)
    scene.until(lambda: scene.job()["JobState"] == "NODE_FAIL", "the controller to miss the node")


def slow_network(scene: Scene) -> None:
    scene.slurm.set_rate("30mbit")


def _survived(
    name: str, what: str, inject: Callable[[Scene], None], *, setting: Setting = SHORT, then: str = REPORT
) -> Fault:
    return Fault(
        name=name, what=what, inject=inject, where=SLURM, state="completed", exit_code=0, tells="completed, exit 0",
        kept="everything", keeps=WHOLE, then=then, setting=setting,
    )  # fmt: skip


FAULTS = (
    _survived(
        "slurmctld-restarted", "Slurm's controller is killed, and started again", in_window(controller_restarted)
    ),
    _survived(
        "slurmctld-down", "Slurm's controller is down when the job ends; `status` still answers",
        in_window(controller_down_at_the_end),
    ),
    _survived(
        "slurmdbd-down", "Slurm's accounting is down", in_window(accounts_down),
        setting=Setting(steps=20, own=True, cluster=("--accounting",), words=("-a", "demo")),
    ),
    _survived(
        "munge-down", "munge is down for a while; `status` prints the state that the job itself wrote",
        when("window", munge_down_for_a_while), setting=Setting(training=waits("window"), own=True),
    ),
    _survived("slurmd-restarted", "a node's slurmd is killed, and started again", in_window(slurmd_restarted)),
    Fault(
        name="slurmd-killed",
        what="a node's slurmd is killed: the controller marks the node as lost, and the training continues to its end",
        inject=in_window(slurmd_killed),
        where=SLURM,
        state="node_fail",
        tells="one of its nodes failed: submit it again",
        kept="everything",
        keeps=WHOLE,
        then=REPORT,
        setting=Setting(steps=900, own=True),
    ),
    Fault(
        name="slurmstepd-killed",
        what="the slurmstepd of the job's step is killed: `srun` waits until the time limit",
        inject=in_window(step_daemon_killed),
        where=SLURM,
        state="timeout",
        tells="timeout",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then="slurm.sh run RUN",
        setting=Setting(steps=100, own=True),
    ),
    _survived("node-drained", "the node is drained while it trains", in_window(node_is("drain"))),
    Fault(
        name="node-down",
        what="the node goes down while it trains",
        inject=in_window(node_is("down")),
        where=SLURM,
        state="node_fail",
        tells="node_fail",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then="slurm.sh run RUN",
        setting=Setting(steps=600, own=True),
    ),
    _survived("host-renamed", "the node's host name changes while it trains", in_window(host_renamed)),
    Fault(
        name="network-cut",
        what="a node's network is cut in the middle of a collective",
        inject=network_cut,
        where=SLURM,
        state="node_fail",
        tells="node_fail",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then="slurm.sh run RUN",
        setting=Setting(training="real", nodes=2, steps=9999, own=True),
    ),
    Fault(
        name="node-gone",
        what="the second of two nodes dies without a word, for example because it loses power",
        inject=node_gone,
        where=SLURM,
        state="node_fail",
        tells="one of its nodes failed: submit it again; node node2 with rank 1 has not reported since",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then="slurm.sh run RUN",
        setting=Setting(training="real", nodes=2, steps=9999, own=True),
    ),
    _survived(
        "network-cut-for-5-s", "a node's network is cut for five seconds", network_cut_for_a_while,
        setting=Setting(training="real", nodes=2, steps=12, own=True),
    ),
    _survived(
        "network-slow", "the network is slow (30 Mbit/s)", slow_network,
        setting=Setting(training="real", nodes=2, steps=4, own=True), then="slurm.sh report RUN names the link",
    ),
)  # fmt: skip
