"""Faults of a real training of two ranks, on two nodes of Slurm or on this machine: killed, hanging, cut off."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from tests.faults.fault import BOTH, LOCAL, SLURM, Fault, Setting, nothing
from tests.faults.in_ranks import LOGS, METRICS, TRACES
from tests.faults.scene import Scene


def _fault(name: str, what: str, tells: str, words: tuple[str, ...] = (), **more: Any) -> Fault:
    """A row of the table; without other fields the training fails."""
    steps, own = more.pop("steps", 9999), more.pop("own", False)
    setting = Setting(training="real", nodes=2, steps=steps, own=own, words=words)
    usual: dict[str, Any] = {
        "inject": nothing,
        "state": "failed",
        "kept": "metrics of every step so far",
        "keeps": (METRICS,),
    }
    return Fault(name=name, what=what, tells=tells, setting=setting, **{**usual, "then": LOGS, **more})


def signalled(number: signal.Signals, rank: int) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        pids = [scene.training_pid(each) for each in range(2)]  # both are at work
        scene.kill(number, pids[rank])

    return inject


def network_cut(until: Callable[[Scene], object]) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.training_pid(0)
        bridge = (scene.slurm.root / "run" / "bridge").read_text().strip()
        cable = ("ip", "link", "set", f"{bridge}-2")
        scene.slurm.run(*cable, "down")
        until(scene)
        scene.slurm.run(*cable, "up")

    return inject


def node_is_missed(scene: Scene) -> None:
    scene.until(lambda: scene.job()["JobState"] == "NODE_FAIL", "the controller to miss the node")


def _hang(kind: str, what: str, tells: str) -> Fault:
    return _fault(
        f"hang-{kind}", f"one of two ranks hangs, because {what}, with `--on-hang stop`", tells,
        ("--on-hang", "stop", "--fault", f"hang,kind={kind},rank=1,step=6"), state="stuck", slurm="FAILED",
        kept="metrics of every step so far, and all stacks", keeps=(METRICS, "live/stuck.json"),
        then="slurm.sh status RUN says who is stuck where",
    )  # fmt: skip


def _crash(kind: str) -> tuple[str, ...]:
    return ("--fault", f"crash,kind={kind},rank=1,step=6")


FAULTS = (
    *(
        _fault(
            f"training-rank{rank}-kill", f"the {node} node's rank of a training over two nodes gets `KILL`",
            "exit 137: ended by the signal KILL", inject=signalled(signal.SIGKILL, rank), where=SLURM, exit_code=137,
            keeps=(METRICS, "status.json"),
        )
        for rank, node in enumerate(("first", "second"))
    ),
    _fault(
        "training-rank1-term", "one rank of a training over two nodes gets `TERM`: all stop at the same step",
        "exit 143: ended by the signal TERM", inject=signalled(signal.SIGTERM, 1), where=SLURM, exit_code=143,
        kept="metrics and whole traces of the steps so far", keeps=(METRICS, TRACES, "status.json"),
        then="slurm.sh report RUN",
    ),
    _hang("file", "it reads a file that nobody writes", "rank 1 is in … reading the FIFO"),
    _hang("stopped", "it is stopped and never continued", "rank 1 is stopped (SIGSTOP)"),
    _fault(
        "died-first", "one of two ranks raises an exception, and the other loses its connection",
        "rank 1 failed first, in step 6: RuntimeError", _crash("exception"), where=BOTH,
        keeps=(METRICS, "status.json"),
    ),
    _fault(
        "segv-first", "a library crashes in one of two ranks (`SEGV`), and the other loses its connection",
        "rank 1 failed first, in step …: Segmentation fault", _crash("segv"), where=LOCAL,
        keeps=(METRICS, "status.json"),
    ),
    _fault(
        "loss-nan", "the loss of one of two ranks becomes NaN", "the loss is NaN since step … on rank",
        ("--fault", "nan,rank=1,step=4"), where=LOCAL, state="completed", exit_code=0, steps=6, kept="everything",
        keeps=(METRICS, "status.json"), then="slurm.sh status RUN says since which step",
    ),
    _fault(
        "network-cut", "a node's network is cut in the middle of a collective", "node_fail",
        inject=network_cut(node_is_missed), where=SLURM, state="node_fail", own=True, then="slurm.sh run RUN",
    ),
    _fault(
        "network-cut-for-5-s", "a node's network is cut for five seconds", "completed, exit 0",
        # the fault: it is cut for so long
        inject=network_cut(lambda _: time.sleep(5)), where=SLURM, state="completed", exit_code=0, steps=12, own=True,
        kept="everything", keeps=(METRICS, TRACES, "status.json"), then="slurm.sh report RUN",
    ),
)  # fmt: skip
