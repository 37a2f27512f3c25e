"""`slurm.sh watch --json` of a run with 1,000 ranks on 250 nodes: CPU seconds for a refresh, and peak memory.

    .venv/bin/python benchmarks/bench_watch.py [--nodes N] [--ranks-per-node N] [--minutes M] [--limit 1.0]

The nodes' files first have the heartbeats of some minutes; then one line is appended to each before each refresh, as in
two seconds of a run. Exits 1 when a refresh takes more than `--limit` CPU seconds, or the process more than
`--limit-mb` of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from harness.common.heartbeats import DATA_EVERY, PERIOD_S, Beat, encode
from harness.common.run_files import HEARTBEATS
from harness.experiment.exercises import DDP
from harness.launch.submit import prepare
from harness.run import Run, Stage
from harness.run.record import RunRecord, Status
from harness.site.site import load_site

ROOT = Path(__file__).resolve().parents[1]
NS = 1_000_000_000
STEPS = 8  # in a beat: of 250 ms
INTERVAL_S = 1.0  # between two refreshes, in which two seconds of the run are replayed
TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """What the process has used so far."""

    cpu_s: float
    peak_mb: float


def make_run(root: Path) -> Run:
    """A run that the stand-in for squeue lists as running."""
    prepared = prepare(DDP(gpus_per_node=1), load_site("local"))
    record = RunRecord(
        job_id="4711", backend="slurm", experiment=prepared.experiment, site=prepared.job.site,  # type: ignore[arg-type]
        job=prepared.job.as_json(), command=["slurm.sh"], git={}, versions={}, user="someone",
        submit_host="elsewhere", created_ns=time.time_ns(),
    )  # fmt: skip
    with Stage(root / "exercise_1_DDP") as stage:
        Run(stage.path).write_record(record)
        run = stage.publish("large-4711", "4711")
    run.write_status(Status(state="running", started_ns=time.time_ns()))
    (root / "bin").mkdir()
    (root / "bin" / "squeue").write_text("#!/bin/sh\necho '4711|RUNNING|N/A|N/A|None'\n")
    (root / "bin" / "squeue").chmod(0o755)
    return run


class Nodes:
    """The heartbeats of all nodes, which grow."""

    def __init__(self, run: Path, nodes: int, ranks: int) -> None:
        self._files = [HEARTBEATS.path(run, f"n{number:03}") for number in range(nodes)]
        self._ranks, self._step, self._now_ns = ranks, 0, time.time_ns() - NS
        self._random = random.Random(1)
        self._files[0].parent.mkdir()
        for number, file in enumerate(self._files):
            lines = [{"event": "node", "node": number, "host": f"gpu-{number:03}", "unix_ns": self._now_ns}]
            lines += [
                {"event": "rank", "rank": number * ranks + local, "world": nodes * ranks, "local": local, "pid": 1,
                 "steps": 100_000, "unix_ns": self._now_ns}
                for local in range(ranks)
            ]  # fmt: skip
            lines += [
                {"event": "place", "id": line, "file": "/home/someone/train.py", "line": line, "function": "forward"}
                for line in range(50)
            ]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def grow(self, lines: int) -> None:
        """Append so many lines to each file."""
        for number, file in enumerate(self._files):
            with file.open("a") as out:
                out.write("".join(self._line(number, later) for later in range(lines)))
        self._step += STEPS * lines
        self._now_ns = time.time_ns()

    def _line(self, node: int, later: int) -> str:
        ranks = range(node * self._ranks, (node + 1) * self._ranks)
        step = self._step + STEPS * (later + 1)
        beats = [self._beat(rank, step).as_list() for rank in ranks]
        at_ns = self._now_ns + int(later * PERIOD_S * NS)
        return json.dumps({"event": "beat", "unix_ns": at_ns, "ranks": beats, "samples": 64, "tokens": 65536}) + "\n"

    def _beat(self, rank: int, step: int) -> Beat:
        took_us = [self._random.gauss(250_000, 5_000) for _ in range(STEPS)]
        return Beat(
            rank=rank, step=step, phase=self._random.choice("fbbo"), idle_ms=100, quiet_ms=20, slot=rank % 50,
            memory_mib=60_000, use_percent=95, loss="2.512", first=step - STEPS, per=1, steps=encode(took_us),
            own_phase=encode([us * 0.9 for us in took_us]),
            data=encode([9_000]) if step // STEPS % DATA_EVERY == 0 else "",
        )  # fmt: skip


def used(pid: int) -> Usage:
    """CPU time and peak memory of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, peak_kib * 1024 / 1e6)


def main() -> int:
    """Print the table; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=250)
    parser.add_argument("--ranks-per-node", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=5, help="of the run, before the first refresh")
    parser.add_argument("--refreshes", type=int, default=90)
    parser.add_argument("--limit", type=float, default=1.0, help="CPU seconds for a refresh")
    parser.add_argument("--limit-mb", type=float, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        run = make_run(root)
        nodes = Nodes(run.path, asked.nodes, asked.ranks_per_node)
        nodes.grow(round(asked.minutes * 60 / PERIOD_S))
        environment = {
            **os.environ,
            "HARNESS_RUNS": folder,
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "PYDANTIC_DISABLE_PLUGINS": "__all__",
        }
        argv = [sys.executable, "-m", "harness", "watch", "4711", "--json", "--interval", str(INTERVAL_S)]
        seen: list[tuple[Usage, int]] = []
        with subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(asked.refreshes + 1):
                line = process.stdout.readline()
                seen.append((used(process.pid), len(json.loads(line)["ranks"])))
                nodes.grow(1)
            process.terminate()
    ranks = {count for _, count in seen}
    first, last = seen[0][0], seen[-1][0]
    refresh_s = (last.cpu_s - first.cpu_s) / asked.refreshes
    print(f"{asked.nodes} nodes, {max(ranks)} ranks, {asked.refreshes * PERIOD_S / 60:g} minutes replayed")
    print(f"{first.cpu_s:>8.2f} CPU s  to start and to read {asked.minutes:g} minutes")
    print(f"{refresh_s:>8.3f} CPU s  a refresh (JSON of all ranks)")
    print(f"{last.peak_mb:>8.0f} MB     peak memory")
    right = ranks == {asked.nodes * asked.ranks_per_node}
    return int(not right or refresh_s > asked.limit or last.peak_mb > asked.limit_mb)


if __name__ == "__main__":
    sys.exit(main())
