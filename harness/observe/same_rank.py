"""Processes of one run that are the same rank, as tasks of srun without RANK are: the first one is recorded, and a
later one leaves a sentence in the run that says who both are and what makes them one training."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from harness.common.run_folder.run_files import SAME_RANK
from harness.common.system.files import write_whole_text

# By which mpirun and srun number their tasks: each one, how many there are, those of a node.
TASKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
# What a launcher leaves in its ranks' environment, and how one that was started on each node learns of all nodes.
_LAUNCHERS = {
    ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION"): "give accelerate launch --num_machines $SLURM_NNODES "
    "--machine_rank $SLURM_NODEID --main_process_ip … --main_process_port …",
    ("TORCHELASTIC_RUN_ID",): "give torchrun --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --master-addr … "
    "--master-port … in place of --standalone",
}


def task_variables() -> tuple[str, str, str]:
    """Those by which the tasks of this process's launcher are numbered."""
    return next((names for names in TASKS if os.environ.get(names[0], "").isdecimal()), TASKS[-1])


def process_line() -> str:
    """Who this process is, as the first line of the metrics that it is about to write; `above` are the processes
    that have started it, as far as they are known."""
    number = os.environ.get(task_variables()[0], "")
    about = {
        "event": "process",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "task": int(number) if number.isdecimal() else None,
        "above": [os.getppid(), int(os.environ.get("HARNESS_OBSERVED_FIRST", "0"))],
    }
    return json.dumps(about) + "\n"


def told(run: Path, rank: int, metrics: Path, *, has_met: bool = False) -> str:
    """The sentence on this process and the one that is this rank already, which is left in the run too; empty if one of
    them has started the other, as torch.multiprocessing.spawn does. metrics: the other's. has_met: this process trains
    with others, so that without RANK the other seemed to be this rank before it met them."""
    first_line = metrics.read_text(encoding="utf-8").partition("\n")[0]
    mine, first = json.loads(process_line()), json.loads(first_line)
    is_here = mine["host"] == first["host"]
    if is_here and (first["pid"] in mine["above"] or mine["pid"] in first["above"]):
        return ""
    both = f"{_named(first)} and {_named(mine)} are both rank {rank}"
    if has_met and "RANK" not in os.environ:
        return f"{both} for the observer, which saw one before the ranks had met: the other is not recorded; set RANK"
    if is_here and mine["task"] == first["task"]:
        said = f"{both}, so one of them is recorded: put `observe --` before each, or call init_process_group in both"
    else:
        said = f"{both}: each trains alone, on the same data unless the script divides it; to train together, {_cure()}"
    write_whole_text(SAME_RANK.path(run, f"{mine['task']}-{mine['host']}-{mine['pid']}"), said + "\n")
    return said


def _named(process: dict[str, Any]) -> str:
    return ("process {pid} on {host}" if process["task"] is None else "task {task} (pid {pid} on {host})").format(
        **process
    )


def _cure() -> str:
    for names, cure in _LAUNCHERS.items():
        if all(name in os.environ for name in names):
            return cure
    number, count, local = task_variables()
    return f"set in each task RANK=${number} WORLD_SIZE=${count} LOCAL_RANK=${local} MASTER_ADDR=… MASTER_PORT=…"
