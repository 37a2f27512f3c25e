"""Faults around a running training: its launcher, its monitor, its script and what watches it are killed or hang."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.faults.fault import LOCAL, Fault, Setting
from tests.faults.in_ranks import LOGS, METRICS, TRACES
from tests.faults.scene import Scene

LONG = Setting(steps=6000)  # ten minutes: it is over by the fault, not by its steps
WHOLE = (METRICS, TRACES, "status.json")


def in_window(action: Callable[[Scene], object]) -> Callable[[Scene], None]:
    """Do it as soon as the first rank is in the profiled steps."""

    def inject(scene: Scene) -> None:
        scene.reached("window")
        action(scene)

    return inject


def killed(word: str) -> Callable[[Scene], None]:
    """The run's process with this word in its command is killed while the training is in its window."""
    return in_window(lambda scene: scene.kill(signal.SIGKILL, scene.process(word)))


def monitor_killed(scene: Scene) -> None:
    """Once it has taken a sample; until then the training waits."""
    training = scene.reached("window")
    scene.kill(signal.SIGSTOP, training)
    folder = scene.path / "gpus-monitor"
    scene.until(lambda: any(f.read_text().count("\n") > 1 for f in folder.glob("*/samples.csv")), "a sample")
    scene.kill(signal.SIGKILL, scene.process("harness.heartbeats.node"))
    scene.kill(signal.SIGCONT, training)


def all_of_it_killed(scene: Scene) -> None:
    scene.reached("window")
    scene.kill(signal.SIGKILL, *[each.pid for each in scene.processes() if "harness -e" not in each.words])


def controller_stopped(scene: Scene) -> None:
    scene.reached("start")
    pid = scene.process("submitit")
    scene.kill(signal.SIGSTOP, pid)
    scene.until(lambda: scene.path.joinpath("status.json").read_text().count("completed"), "the run's end")
    scene.kill(signal.SIGCONT, pid)


FAULTS = (
    Fault(
        name="launcher-killed",
        what="accelerate's own process is killed (`KILL`)",
        inject=killed("bin/accelerate launch"),
        state="failed",
        exit_code=137,
        tells="exit 137: ended by the signal KILL",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then=LOGS,
        setting=LONG,
    ),
    Fault(
        name="all-ranks-killed",
        what="everything on the node is killed (`KILL`) at once, for example when memory runs out",
        inject=all_of_it_killed,
        state="failed",
        tells="failed",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then=LOGS,
        setting=LONG,
    ),
    Fault(
        name="monitor-killed",
        what="the monitor is killed",
        inject=monitor_killed,
        state="completed",
        exit_code=0,
        tells="completed, exit 0",
        kept="everything except some of the monitor's samples",
        keeps=(*WHOLE, "gpus-monitor/*/samples.csv"),
        then="slurm.sh report RUN",
        quick=LOCAL,
        setting=Setting(steps=20),
    ),
    Fault(
        name="script-killed",
        what="the job's script is killed (`KILL`)",
        inject=killed("job.sbatch"),
        where=LOCAL,
        state="failed",
        tells="it ended without an exit status",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then=LOGS,
        setting=LONG,
        quick=LOCAL,
    ),
    Fault(
        name="controller-killed",
        what="the process that watches a run on this machine is killed (`KILL`)",
        inject=killed("submitit"),
        where=LOCAL,
        state="completed",
        exit_code=0,
        tells="completed, exit 0",
        kept="everything: the run continues without it",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=Setting(steps=20),
    ),
    Fault(
        name="controller-is-stopped",
        what="the process that watches a run on this machine is stopped",
        inject=controller_stopped,
        where=LOCAL,
        state="completed",
        exit_code=0,
        tells="completed, exit 0",
        kept="everything: the run continues without it",
        keeps=WHOLE,
        then="slurm.sh report RUN",
    ),
)
