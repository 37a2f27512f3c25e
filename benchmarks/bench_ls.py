"""`slurm.sh ls` with many runs, beside reading their run.json with plain json in a process that does nothing else.

    .venv/bin/python benchmarks/bench_ls.py [--runs N] [--rounds N] [--limit 2.0]

A third of the runs completed, a third was cancelled before it began, and a third lost its status.json. The commands
take turns; medians are compared. Exits 1 when a list takes more than `--limit` seconds of CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.experiment.exercises import DDP
from harness.launch.submit import prepare
from harness.run import Run, Stage
from harness.run.record import NodeStatus, RunRecord, Status
from harness.site.site import load_site

QUIET = subprocess.DEVNULL
ROOT = Path(__file__).resolve().parents[1]
PLAIN = """import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("*/profiler/*/run.json"):
    json.loads(path.read_text())
"""
LS = [sys.executable, "-m", "harness", "ls"]
STEP = {"event": "step", "phase": "active", "step_ns": 100_000_000}


def make(root: Path, count: int) -> None:
    """Runs as they lie on disk some days later."""
    prepared = prepare(DDP(gpus_per_node=1), load_site("local"))
    record = RunRecord(
        job_id="", backend="local", experiment=prepared.experiment, site=prepared.job.site,  # type: ignore[arg-type]
        job=prepared.job.as_json(), command=["slurm.sh", "-e", "1"], git={}, versions={}, user="someone",
        submit_host="elsewhere", created_ns=time.time_ns(),
    )  # fmt: skip
    for number in range(count):
        job_id = f"local-{number}"
        with Stage(root / "exercise_1_DDP") as stage:
            Run(stage.path).write_record(record.model_copy(update={"job_id": job_id}))
            run = stage.publish(prepared.job.name_for(job_id), job_id)
        end = Status(state="cancelled" if number % 3 == 1 else "completed", exit_code=0, started_ns=1, ended_ns=2)
        node = NodeStatus(node=0, host="n", exit=0, started_ns=1, ended_ns=2)
        run.write_record(run.record.model_copy(update={"status": end, "nodes": [node]}))
        if number % 3 != 2:
            run.write_status(end)
        (run.path / "metrics").mkdir()
        (run.path / "metrics" / "rank0.jsonl").write_text((json.dumps(STEP) + "\n") * 20)


def cpu_s(argv: list[str], root: Path) -> float:
    """CPU seconds of a command, which must succeed."""
    environment = {**os.environ, "HARNESS_RUNS": str(root)}
    with subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=QUIET, stderr=QUIET) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Print the table; 1 when a list is over the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=2.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root, asked.runs)
        commands = {
            "plain json": [sys.executable, "-c", PLAIN, str(root)],
            "slurm.sh ls": LS,
            f"slurm.sh ls -n {asked.runs}": [*LS, "-n", str(asked.runs)],
            f"slurm.sh ls -n {asked.runs} --json": [*LS, "-n", str(asked.runs), "--json"],
        }
        for argv in commands.values():
            cpu_s(argv, root)  # bytecode and file caches
        rounds = [{name: cpu_s(argv, root) for name, argv in commands.items()} for _ in range(asked.rounds)]
    medians = {name: statistics.median(each[name] for each in rounds) for name in commands}
    print(f"{asked.runs} runs\n{'CPU ms':>8} {'ratio':>6}")
    for name, seconds in medians.items():
        print(f"{seconds * 1e3:>8.0f} {seconds / medians['plain json']:>6.2f}  {name}")
    return int(max(medians.values()) > asked.limit)


if __name__ == "__main__":
    sys.exit(main())
