"""Faults of a submission: what it needs is missing or fails, or the command itself is interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.faults.fault import BOTH, LOCAL, SLURM, Fault, Setting, nothing
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.scene import ROOT, Scene
from tests.waiting import limit_s

AGAIN = "the same command again"
PRINTED = "in the window"
WHOLE = (METRICS, TRACES, "status.json")
LISTENER = (
    "import os, socket, time; s = socket.socket(); s.bind(('', int(os.environ['MASTER_PORT']))); s.listen(); "
    "open(os.environ['RUN_DIR'] + '/listening-' + os.uname().nodename, 'w'); p = os.getppid(); "
    "[time.sleep(0.2) for _ in iter(lambda: os.getppid() == p, False)]"
)
OUTER = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.255.255.1"}
TAKEN = {"node_setup": [f'python3 -c "{LISTENER}" & until [[ -e $RUN_DIR/listening-$host ]]; do sleep 0.1; done']}


def in_place_of(program: str, body: str) -> Callable[[Scene], None]:
    """Another program of this name comes first on the PATH."""

    def prepare(scene: Scene) -> None:
        folder = scene.folder / "bin"
        folder.mkdir()
        (folder / program).write_text(f"#!/bin/sh\n{body}\n")
        (folder / program).chmod(0o755)
        scene.env["PATH"] = f"{folder}:{os.environ['PATH']}"

    return prepare


def without_slurm(scene: Scene) -> None:
    """A PATH on which there is Python and git alone."""
    folder = scene.folder / "bin"
    folder.mkdir()
    for name in ("/usr/bin/git", "/bin/bash", "/bin/sh"):
        (folder / Path(name).name).symlink_to(name)
    scene.env["PATH"] = str(folder)


def refused(name: str, what: str, prepare: Callable[[Scene], None], tells: str, then: str) -> Fault:
    return Fault(
        name=name,
        what=what,
        inject=nothing,
        prepare=prepare,
        where=SLURM,
        state="refused",
        tells=tells,
        told_by="launch",
        kept="nothing was started, and nothing is left",
        then=then,
        quick=SLURM if name in ("sbatch-refuses", "sbatch-rubbish") else (),
    )


def interrupted_while_following(number: signal.Signals) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.reached("window")
        assert scene.launcher is not None
        scene.launcher.send_signal(number)

    return inject


def followed(number: signal.Signals) -> Callable[[Scene], None]:
    """As above, for a job: the launch has returned, and another command follows."""

    def inject(scene: Scene) -> None:
        scene.reached("window")
        shown = scene.folder / "shown"
        with shown.open("w") as output:
            watching = subprocess.Popen(
                scene.argv("logs", scene.job_id, "-f"), cwd=ROOT, env=scene.environment, start_new_session=True,
                stdout=output, stderr=output,
            )  # fmt: skip
        scene.until(lambda: PRINTED in shown.read_text() or watching.poll() is not None, "what the training printed")
        watching.send_signal(number)
        watching.wait(timeout=limit_s())
        assert "Traceback" not in shown.read_text()

    return inject


def a_python_of_its_own(scene: Scene) -> None:
    """An environment that can be taken away: another way to the same packages."""
    mine = scene.folder / "venv"
    (mine / "bin").mkdir(parents=True)
    (mine / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (mine / "lib").symlink_to(Path(sys.prefix) / "lib")
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", mine)
    launcher = (Path(sys.prefix) / "bin" / "accelerate").read_text()
    (mine / "bin" / "accelerate").write_text(f"#!{mine}/bin/python\n{launcher.partition(chr(10))[2]}")
    (mine / "bin" / "accelerate").chmod(0o755)
    scene.python = mine / "bin" / "python"


def interpreter_gone(scene: Scene) -> None:
    scene.reached("window")
    scene.python.unlink()
    scene.python = Path(sys.executable)


def two_at_once(scene: Scene) -> None:
    """A second launch at the same moment; it must get a name of its own."""
    other = scene.harness(*scene.launch_words(), "--json")
    assert other.returncode == 0, other
    assert len(scene.found()) == 2, scene.found()


FAULTS = (
    refused(
        "sbatch-missing", "there is no `sbatch` here", without_slurm,
        "sbatch is not on PATH: log in to the cluster, or use --site local", "log in to the cluster, or --site local",
    ),
    refused(
        "sbatch-refuses", "`sbatch` refuses the job",
        in_place_of("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1"),
        "sbatch refused the job: sbatch: error: Batch job submission failed: Invalid account",
        "the flag that Slurm's sentence names: -a, -p, -q or --time",
    ),
    refused(
        "sbatch-silent", "`sbatch` fails and says nothing", in_place_of("sbatch", "exit 3"),
        r"sbatch refused the job: nothing \(exit code 3\)", "slurm.sh doctor",
    ),
    refused(
        "sbatch-rubbish", "`sbatch` prints no job id", in_place_of("sbatch", "echo 'Welcome to the cluster!'"),
        "sbatch printed no job id but: Welcome to the cluster!", "slurm.sh doctor",
    ),
    refused(
        "sbatch-crashes", "`sbatch` crashes", in_place_of("sbatch", "kill -SEGV $$"),
        "sbatch refused the job", "slurm.sh doctor",
    ),
    refused(
        "sbatch-hangs", "`sbatch` does not answer", in_place_of("sbatch", "exec sleep 1000"),
        "sbatch did not answer within two minutes: the controller may be down", AGAIN,
    ),
    Fault(
        name="no-image",
        what="the site's container is not there",
        inject=nothing,
        state="refused",
        tells="/nowhere/image.sif does not exist",
        told_by="launch",
        kept="nothing was started, and nothing is left",
        then="the path in the site file; `slurm.sh doctor`",
        setting=Setting(site={"container": {"image": "/nowhere/image.sif"}}),
        quick=BOTH,
    ),
    Fault(
        name="setup-fails",
        what="a line of the site's `setup` fails",
        inject=nothing,
        state="failed",
        exit_code=1,
        tells="a module that is not here",
        told_by="logs",
        kept="its script and logs",
        keeps=("status.json",),
        then="the line in the site file",
        setting=Setting(site={"setup": ["echo 'a module that is not here' >&2", "false"]}),
        quick=LOCAL,
    ),
    Fault(
        name="node-setup-fails",
        what="a line of the site's `node_setup` fails",
        inject=nothing,
        state="completed",
        exit_code=0,
        tells="warning: .*: a line of node_setup failed",
        told_by="logs",
        kept="everything",
        keeps=WHOLE,
        then="the line in the site file",
        setting=Setting(site={"node_setup": ["false"], "node_cleanup": ["false"]}),
    ),
    Fault(
        name="port-taken",
        what="another program has the port by which the ranks of a node connect",
        inject=nothing,
        state="completed",
        exit_code=0,
        tells="Port `[0-9]+` is already in use. Accelerate will .* open port",
        told_by="logs",
        kept="all of it: the ranks use another port",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=Setting(ranks=2, launcher="accelerate", site=TAKEN),
    ),
    Fault(
        name="port-taken-on-two-nodes",
        what="another program has the port by which two nodes connect",
        inject=nothing,
        where=SLURM,
        state="failed",
        tells="port `[0-9]+`, but another process is utilizing it|address already in use",
        told_by="logs",
        kept="its script and logs",
        keeps=("status.json",),
        then=AGAIN,
        setting=Setting(nodes=2, launcher="accelerate", site=TAKEN),
    ),
    Fault(
        name="interpreter-gone",
        what="the environment's Python is deleted while it trains",
        inject=interpreter_gone,
        prepare=a_python_of_its_own,
        state="completed",
        exit_code=0,
        tells="no plots of the monitor: .* No such file or directory: .*bin/python",
        told_by="logs",
        kept="everything except the monitor's plots",
        keeps=WHOLE,
        then="`bash slurm.sh --install train`",
        setting=Setting(steps=20),
    ),
    Fault(
        name="outer-launch",
        what="the shell has the variables of an outer launch (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, …)",
        inject=nothing,
        state="completed",
        exit_code=0,
        tells="LOCAL_RANK, MASTER_ADDR, PMI_RANK, RANK, WORLD_SIZE of your shell are not passed to the job",
        told_by="launch",
        kept="everything: the run has its own ranks",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=Setting(env=dict.fromkeys(("RANK", "LOCAL_RANK", "PMI_RANK"), "1") | OUTER),
        quick=LOCAL,
    ),
    Fault(
        name="accelerates-variables",
        what="the shell has variables of accelerate",
        inject=nothing,
        where=LOCAL,
        state="completed",
        exit_code=0,
        tells="from your shell: .*ACCELERATE_MIXED_PRECISION=bf16",
        told_by="launch",
        kept="everything: run.json has the variables",
        keeps=WHOLE,
        then="`unset` those that you did not mean, and the same command again",
        setting=Setting(env={"ACCELERATE_MIXED_PRECISION": "bf16"}),
    ),
    Fault(
        name="sbatchs-variables",
        what="the shell has variables that `sbatch` obeys and no option of the job overrules",
        inject=nothing,
        where=SLURM,
        state="completed",
        exit_code=0,
        tells="from your shell, for sbatch: SBATCH_OPEN_MODE=append",
        told_by="launch",
        kept="everything: run.json has the variables",
        keeps=WHOLE,
        then="`unset` those that you did not mean, and the same command again",
        setting=Setting(env={"SBATCH_OPEN_MODE": "append", "SBATCH_TIMELIMIT": "1"}),
    ),
    Fault(
        name="two-at-once",
        what="two launches at the same moment",
        inject=two_at_once,
        where=LOCAL,
        state="completed",
        exit_code=0,
        tells="completed, exit 0",
        kept="both: each has its own name",
        keeps=WHOLE,
        then="slurm.sh ls",
    ),
    Fault(
        name="ctrl-c",
        what="Ctrl-C in the terminal that follows a run on this machine",
        inject=interrupted_while_following(signal.SIGINT),
        where=LOCAL,
        state="cancelled",
        tells="stopping: the traces so far are kept",
        told_by="launch",
        kept="metrics and whole traces of the steps so far",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=Setting(steps=6000),
        quick=LOCAL,
    ),
    *(
        Fault(
            name=f"slurm-sh-{number.name.lower()}",
            what=f"the command that follows a run on this machine gets `{number.name.removeprefix('SIG')}`"
            + (", for example because its terminal is closed" if number is signal.SIGHUP else ""),
            inject=interrupted_while_following(number),
            where=LOCAL,
            state="completed",
            exit_code=0,
            tells="completed, exit 0",
            kept="everything: the run continues without it",
            keeps=WHOLE,
            then="slurm.sh logs RUN -f",
            setting=Setting(steps=30),
        )
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL)
    ),
    *(
        Fault(
            name=f"follow-{number.name.lower()}",
            what=f"the command that follows a job gets `{number.name.removeprefix('SIG')}`"
            + (" (Ctrl-C)" if number is signal.SIGINT else ""),
            inject=followed(number),
            where=SLURM,
            state="completed",
            exit_code=0,
            tells="completed, exit 0",
            kept="everything: the job continues",
            keeps=WHOLE,
            then="slurm.sh logs RUN -f",
            setting=Setting(steps=100, training=f"at('window', lambda rank: print({PRINTED!r}, flush=True))"),
        )
        for number in (signal.SIGINT, signal.SIGHUP)
    ),
)  # fmt: skip
