"""Runs that are stopped: cancelled, by signals of Slurm, and at their time limit."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.faults.fault import BOTH, LOCAL, SLURM, Fault, Setting, nothing
from tests.faults.in_job import LONG, WHOLE, in_window
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.scene import Scene


def scancel(*words: str) -> Callable[[Scene], object]:
    return lambda scene: scene.slurm.run("scancel", *words, scene.job_id)


def scontrol(*words: str) -> Callable[[Scene], object]:
    return lambda scene: scene.slurm.run("scontrol", *[word.format(job=scene.job_id) for word in words])


def quick_kills(scene: Scene) -> None:
    """A job that was asked to stop is killed after a second, and not after the test cluster's 90."""
    conf = scene.slurm.root / "etc" / "slurm.conf"
    conf.write_text(conf.read_text().replace("KillWait=90", "KillWait=2"))
    scene.slurm.run("scontrol", "reconfigure")


def cancelled(scene: Scene) -> None:
    done = scene.harness("cancel", scene.job_id)
    assert done.returncode == 0, done


def hangs(scene: Scene) -> None:
    """It waits, and the job is at its time limit."""
    scene.kill(signal.SIGSTOP, scene.reached("window"))
    if scene.slurm is not None:
        quick_kills(scene)
        scontrol("update", "JobId={job}", "EndTime=now")(scene)


FAULTS = (
    Fault(
        name="hangs",
        what="the training hangs, until its time limit kills it",
        inject=hangs,
        state="timeout",
        tells="timeout",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then="slurm.sh logs RUN; a longer --time if it did not hang",
        setting=Setting(steps=600, own=True, words=("--time", "00:00:40")),
    ),
    Fault(
        name="time-limit",
        what="the time limit comes while it trains",
        inject=nothing,
        where=LOCAL,
        state="timeout",
        tells="timeout",
        kept="metrics and the traces of the steps so far",
        keeps=(METRICS, TRACES),
        then="a longer --time",
        setting=Setting(steps=600, words=("--time", "00:00:40")),
    ),
    Fault(
        name="warned",
        what="Slurm sends the warning of the time limit",
        inject=in_window(scancel("--batch", "--signal=USR1")),
        where=SLURM,
        state="timeout",
        slurm="FAILED",
        exit_code=143,
        tells="timeout, exit 143",
        kept="metrics and whole traces of the steps so far",
        keeps=WHOLE,
        then="a longer --time",
        setting=LONG,
        quick=SLURM,
    ),
    Fault(
        name="cancelled",
        what="`slurm.sh cancel` while it trains",
        inject=in_window(cancelled),
        state="cancelled",
        tells="cancelled",
        kept="metrics and whole traces of the steps so far",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=LONG,
        quick=BOTH,
    ),
    Fault(
        name="scancel-step",
        what="`scancel JOB.0`: only the step",
        inject=in_window(lambda scene: scene.slurm.run("scancel", f"{scene.job_id}.0")),
        where=SLURM,
        state="failed",
        tells="exit 137: ended by the signal KILL",
        kept="metrics of every step so far",
        keeps=(METRICS, "status.json"),
        then="slurm.sh report RUN",
        setting=LONG,
    ),
    Fault(
        name="scancel-batch-term",
        what="`scancel --batch --signal=TERM JOB`: only its script",
        inject=in_window(scancel("--batch", "--signal=TERM")),
        where=SLURM,
        state="cancelled",
        slurm="FAILED",
        tells="cancelled",
        kept="metrics and whole traces of the steps so far",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=LONG,
    ),
)
