"""Faults of the cluster under a run: daemons killed, nodes down, the network cut. Each has a cluster of its own."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

from tests.faults.fault import SLURM, Fault, Setting
from tests.faults.in_job import in_window
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.processes import is_alive
from tests.faults.scene import Scene
from tests.waiting import wait_until

WHOLE = (METRICS, TRACES, "status.json")
REPORT = "slurm.sh report RUN"


def killed(scene: Scene, daemon: str, number: signal.Signals) -> None:
    pid = scene.daemon(daemon)
    os.kill(pid, number)
    wait_until(lambda: not is_alive(pid), f"the end of {daemon}", scene.slurm.logs)


def controller_down_at_the_end(scene: Scene) -> None:
    killed(scene, "slurmctld", signal.SIGTERM)
    status = scene.path / "status.json"
    scene.until(lambda: json.loads(status.read_text())["state"] != "running", "the run's own end")
    said = scene.harness("status", str(scene.path), "--json")
    assert json.loads(said.stdout)["state"] == "completed", said
    scene.slurm.run("slurmctld")


def slurmd_killed(scene: Scene) -> None:
    killed(scene, "slurmd-node1", signal.SIGKILL)
    scene.until(lambda: scene.job()["JobState"] == "NODE_FAIL", "the controller to miss the node")
    wait_until(lambda: not scene.processes(), "the run's own end: it knows nothing of that", scene.heard)


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


def _survived(name: str, what: str, inject: Callable[[Scene], None], setting: Setting) -> Fault:
    return Fault(
        name=name, what=what, inject=inject, where=SLURM, state="completed", exit_code=0, tells="completed, exit 0",
        kept="everything", keeps=WHOLE, then=REPORT, setting=setting,
    )  # fmt: skip


FAULTS = (
    _survived(
        "slurmctld-down", "Slurm's controller is down when the job ends; `status` still answers",
        in_window(controller_down_at_the_end), Setting(steps=20, own=True),
    ),
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
    _survived(
        "network-cut-for-5-s", "a node's network is cut for five seconds", network_cut_for_a_while,
        Setting(training="real", nodes=2, steps=12, own=True),
    ),
)  # fmt: skip
