"""Runs that are stopped: cancelled, held, suspended, by signals of Slurm, and at their time limit."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable

from tests.faults.fault import BOTH, LOCAL, SLURM, Fault, Setting, nothing
from tests.faults.in_job import LONG, WHOLE, in_window
from tests.faults.in_ranks import LOGS, METRICS, TRACES
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


def cancelled_twice(scene: Scene) -> None:
    cancelled(scene)
    again = scene.harness("cancel", scene.job_id)
    assert (again.returncode, "has already ended: cancelled" in again.stdout) == (0, True), again


def cancelled_while_it_waits(scene: Scene) -> None:
    assert scene.job()["JobState"] == "PENDING"
    cancelled(scene)


def cancelled_while_it_ends(scene: Scene) -> None:
    scene.reached("end")
    cancelled(scene)


def held_and_cancelled(scene: Scene) -> None:
    said = scene.harness("status", scene.job_id)
    assert "JobHeldUser" in said.stdout, said
    cancelled(scene)


def refused_to_requeue(scene: Scene) -> None:
    done = scene.slurm.run("scontrol", "requeue", scene.job_id, check=False)
    assert done.returncode != 0, "the job must not run twice into one directory"


def suspended_for_a_while(scene: Scene) -> None:
    scene.slurm.run("scontrol", "suspend", scene.job_id)
    assert json.loads(scene.harness("status", scene.job_id, "--json").stdout)["state"] == "running"
    time.sleep(1)  # the fault: it stands still for so long
    scene.slurm.run("scontrol", "resume", scene.job_id)


def hangs(scene: Scene) -> None:
    """It waits, and the job is at its time limit."""
    scene.kill(signal.SIGSTOP, scene.reached("window"))
    if scene.slurm is not None:
        quick_kills(scene)
        scontrol("update", "JobId={job}", "EndTime=now")(scene)


def limit_while_it_hangs_at_its_end(scene: Scene) -> None:
    scene.reached("end")
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
        name="hangs-at-its-end",
        what="the training hangs after its last step, until its time limit kills it",
        inject=limit_while_it_hangs_at_its_end,
        state="timeout",
        tells="timeout",
        kept="everything: metrics and whole traces",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=Setting(training="hold('end')", own=True, words=("--time", "00:00:40")),
    ),
    Fault(
        name="time-limit",
        what="the time limit comes while it trains",
        inject=in_window(scontrol("update", "JobId={job}", "EndTime=now")),
        where=SLURM,
        state="timeout",
        tells="timeout",
        kept="metrics and the traces of the steps so far",
        keeps=(METRICS, TRACES),
        then="a longer --time",
        setting=LONG,
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
        name="cancelled-twice",
        what="`slurm.sh cancel`, twice",
        inject=in_window(cancelled_twice),
        state="cancelled",
        tells="cancelled",
        kept="metrics and whole traces of the steps so far",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=LONG,
    ),
    Fault(
        name="cancelled-while-it-waits",
        what="`slurm.sh cancel` while it waits in the queue",
        inject=cancelled_while_it_waits,
        where=SLURM,
        state="cancelled",
        tells="cancelled",
        kept="its script and run.json",
        takes=("logs",),
        then="slurm.sh run RUN",
        setting=Setting(site={"sbatch": ["--begin=now+1hour"]}),
    ),
    Fault(
        name="cancelled-while-it-ends",
        what="`slurm.sh cancel` after its last step",
        inject=cancelled_while_it_ends,
        state="cancelled",
        tells="cancelled",
        kept="metrics and whole traces",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=Setting(training="hold_until_stopped('end')"),
    ),
    Fault(
        name="held",
        what="the job is held in the queue, and then cancelled",
        inject=held_and_cancelled,
        where=SLURM,
        state="cancelled",
        tells="cancelled",
        kept="its script and run.json",
        takes=("logs",),
        then="while it waits, slurm.sh status RUN says JobHeldUser",
        setting=Setting(site={"sbatch": ["--hold"]}),
    ),
    Fault(
        name="requeued",
        what="the running job is requeued",
        inject=in_window(refused_to_requeue),
        where=SLURM,
        state="completed",
        exit_code=0,
        tells="completed, exit 0",
        kept="everything: Slurm refuses, so that nothing is overwritten",
        keeps=WHOLE,
        then="slurm.sh run RUN makes another run",
        setting=Setting(steps=20),
    ),
    Fault(
        name="suspended",
        what="the job is suspended and resumed",
        inject=in_window(suspended_for_a_while),
        where=SLURM,
        state="completed",
        exit_code=0,
        tells="completed, exit 0",
        kept="everything",
        keeps=WHOLE,
        then="slurm.sh report RUN says that it was stopped",
        setting=Setting(steps=30),
    ),
    Fault(
        name="scancel",
        what="`scancel JOB`",
        inject=in_window(scancel()),
        where=SLURM,
        state="cancelled",
        tells="cancelled",
        kept="metrics and whole traces of the steps so far",
        keeps=(METRICS, TRACES),
        then="slurm.sh report RUN",
        setting=LONG,
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
    Fault(
        name="scancel-kill",
        what="`scancel --signal=KILL JOB`: no time to write anything",
        inject=in_window(scancel("--full", "--signal=KILL")),
        where=SLURM,
        state="cancelled",
        tells="cancelled",
        kept="metrics of every step so far",
        keeps=(METRICS,),
        then=LOGS,
        setting=LONG,
    ),
)
