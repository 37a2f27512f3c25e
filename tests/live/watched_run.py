"""A run that Slurm's stand-in lists as running, with heartbeats that grow."""

from __future__ import annotations

import random
import socket
import time
from datetime import datetime, timedelta
from pathlib import Path

from harness.common.run_folder.heartbeats import Beat
from harness.experiment.exercises import DDP
from harness.run import Run, Stage
from harness.run.record import RunRecord, Status
from harness.site.site import load_site
from tests.heartbeats.written import NodeWriter, S, beat


def slurm_run(root: Path, job_id: str = "4711", began_ns: int | None = None) -> Run:
    """A run of two nodes that was submitted to Slurm; it has begun if `began_ns` is given."""
    asked = DDP(nodes=2, gpus_per_node=4)
    record = RunRecord(
        job_id=job_id, backend="slurm", experiment=asked, site=load_site("slurm"),
        job={"experiment": asked.model_dump(), "expects": []}, command=["slurm.sh"], git={}, versions={}, user="ada",
        submit_host=socket.gethostname(), created_ns=time.time_ns(),
    )  # fmt: skip
    with Stage(root / "exercise_1_DDP") as stage:
        Run(stage.path).write_record(record)
        run = stage.publish(f"tiny-llama-{job_id}-n2-g4-bf16", job_id)
    if began_ns is not None:
        run.write_status(Status(state="running", started_ns=began_ns))
    return run


def stand_in(root: Path, *rows: str) -> Path:
    """A squeue that prints these rows and writes each call to squeue.log; returns its folder, for PATH."""
    folder = root / "bin"
    folder.mkdir(exist_ok=True)
    state = rows[0].split("|")[1] if rows else ""
    bodies = {
        "squeue": "\n".join(
            [
                "echo $* >>$0.log",
                f"case $* in *=%T\\|%r*) echo '{state}|None' ;;",
                "*) cat <<'END'",
                *rows,
                "END",
                "esac",
            ]
        ),
        "sacct": "exit 0",
        "scontrol": "exit 1",
    }
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def row(job_id: str = "4711", state: str = "RUNNING", minutes: int = 30, *, reason: str = "None") -> str:
    """A line of squeue; the job ends, or is expected to begin, so many minutes from now."""
    at = (datetime.now() + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S")
    starts, ends = (at, "N/A") if state == "PENDING" else ("2026-01-01T00:00:00", at)
    return f"{job_id}|{state}|{starts}|{ends}|{reason}"


class Growing:
    """Two nodes of four ranks that train; rank 5 is slow, and often waits for data."""

    def __init__(self, run: Run) -> None:
        self.nodes = [NodeWriter(run.path, f"n{n}", range(4 * n, 4 * n + 4), 5000, f"gpu-{n:02}") for n in (0, 1)]
        for node in self.nodes:
            node.now_ns = time.time_ns() - 60 * S
        self._random = random.Random(1)
        self.step = 0

    def grow(self, periods: int = 1) -> None:
        """Append so many lines to each file."""
        for _ in range(periods):
            self.step += 4
            for node in self.nodes:
                node.beats(*(self._beat(rank) for rank in node.ranks))

    def _beat(self, rank: int) -> Beat:
        took = [max(420, self._random.gauss(500, 15)) for _ in range(4)]
        slow = rank == 5
        return beat(
            rank, self.step, took, own_ms=[t - (10 if slow else 90) for t in took],
            phase=self._random.choice("ddfbo" if slow else "fbbo"), slot=2 if slow else 1, memory_mib=38_000 + rank,
            use_percent=71 if slow else 97,
        )  # fmt: skip
