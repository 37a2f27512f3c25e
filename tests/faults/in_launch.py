"""Faults of a submission: what it needs is missing or fails, or the command itself is interrupted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.faults.fault import BOTH, LOCAL, SLURM, Fault, Setting, nothing
from tests.faults.in_ranks import METRICS, TRACES
from tests.faults.scene import Scene

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


FAULTS = (
    refused(
        "sbatch-refuses", "`sbatch` refuses the job",
        in_place_of("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1"),
        "sbatch refused the job: sbatch: error: Batch job submission failed: Invalid account",
        "the flag that Slurm's sentence names: -a, -p, -q or --time",
    ),
    refused(
        "sbatch-rubbish", "`sbatch` prints no job id", in_place_of("sbatch", "echo 'Welcome to the cluster!'"),
        "sbatch printed no job id but: Welcome to the cluster!: the job may be in the queue",
        "`squeue`; `scancel` if it is there",
    ),
    refused(
        "sbatch-hangs", "`sbatch` does not answer", in_place_of("sbatch", "exec sleep 1000"),
        "sbatch did not answer within two minutes: the job may be in the queue", "`squeue`; `scancel` if it is there",
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
        tells="warning: …: a line of node_setup failed",
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
        tells="Port `…` is already in use. Accelerate will … open port",
        told_by="logs",
        kept="all of it: the ranks use another port",
        keeps=WHOLE,
        then="slurm.sh report RUN",
        setting=Setting(ranks=2, launcher="accelerate", site=TAKEN),
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
    Fault(
        name="slurm-sh-sighup",
        what="the terminal is closed that follows a run on this machine (`HUP`)",
        inject=interrupted_while_following(signal.SIGHUP),
        where=LOCAL,
        state="completed",
        exit_code=0,
        tells="completed, exit 0",
        kept="everything: the run continues without it",
        keeps=WHOLE,
        then="slurm.sh logs RUN -f",
        setting=Setting(steps=30),
    ),
)  # fmt: skip
