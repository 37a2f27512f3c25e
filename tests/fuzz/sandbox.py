"""What fuzzed command lines find: runs that ended, traces, a file for each option that takes one, and what is none."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path

from harness.common.run_folder.run_files import METRICS
from harness.experiment.exercises import DDP
from harness.experiment.model import MODELS
from harness.launch.submit import prepare
from harness.run import Run
from harness.run.record import NodeStatus, RunRecord, Status
from harness.site.site import load_site
from tests.fuzz.box import Box
from tests.fuzz.fence import ended, fenced
from tests.synthetic import kineto
from tests.synthetic.job import write_traces
from tests.synthetic.nsys import nsys_step

BEGAN_NS, STEP_NS = 1_750_000_000_000_000_000, 50_000_000
RUNS = Path("runs/exercise_1_DDP/profiler")
RECORDED = RUNS / "tiny-llama-local-1-n1"
"""The run whose files are mutated, from the folder where command lines run."""

SWEEP = """name: small
title: two micro-batches
base: {exercise: 1, time: "00:10:00"}
matrix: {micro_batch_size: [1, 2]}
repeats: 2
show: [step_ns]
"""


def furnished(folder: Path) -> Box:
    """A sandbox in `folder`, which must not hold anything yet."""
    box = Box(folder)
    for number, backend in ((1, "local"), (2, "local"), (77, "slurm")):
        _a_run(box.work / RUNS, f"local-{number}" if backend == "local" else "77", backend)
    _files(box.work / "traces")
    (box.work / "slurm-run").symlink_to("local-1")  # dangling
    write_traces(box.work / "torch", 2)
    box.keep()
    with fenced(box):
        ended(box, ["report", str(RECORDED), "--no-html", "--json"], keeps=True)  # leaves its summary.json
    box.keep()
    return box


def _a_run(profiler: Path, job_id: str, backend: str) -> None:
    """A run that completed, with everything that a real one leaves."""
    site = load_site("slurm" if backend == "slurm" else "local")
    prepared = prepare(DDP(nodes=1, gpus_per_node=2, model="tiny-llama"), site)
    record = RunRecord(
        job_id=job_id, backend=backend, experiment=prepared.experiment,  # type: ignore[arg-type]  # as in `submit`
        site=site, job=prepared.job.as_json(),
        command=["slurm.sh", "-e", "1", "-g", "2"], git={"commit": "0" * 40, "branch": "main", "dirty": False},
        versions={"python": "3.11.7", "torch": "2.13.0"}, user="someone", submit_host=socket.gethostname(),
        created_ns=BEGAN_NS,
    )  # fmt: skip
    run = Run(profiler / f"tiny-llama-{job_id}-n1")
    run.path.mkdir(parents=True)
    run.write_record(record)
    end_ns = BEGAN_NS + 40 * STEP_NS
    run.write_status(
        Status(state="completed", exit_code=0, host=socket.gethostname(), started_ns=BEGAN_NS, ended_ns=end_ns)
    )
    node = NodeStatus(node=0, host="n0", exit=0, started_ns=BEGAN_NS, ended_ns=end_ns)
    (run.path / "node-status").mkdir()
    (run.path / "node-status" / "0.json").write_text(node.model_dump_json(), encoding="utf-8")
    run.log_dir.mkdir(parents=True)
    run.out.write_text("step 1\n", encoding="utf-8")
    run.err.write_text("a warning\n", encoding="utf-8")
    _metrics(run.path)
    _monitor(run.path / "gpus-monitor" / "n0")
    write_traces(run.path / "torch", 2)
    for path in (run.path / "torch").glob("*.json"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()


def _metrics(run: Path) -> None:
    for rank in (0, 1):
        start = {
            "event": "start", "rank": rank, "world_size": 2, "local_rank": rank, "backend": "gloo", "device": "cpu",
            "model": "tiny-llama", "parameters": 311872, "weights": "random", "dtype": "float32", "seq_length": 192,
            "micro_batch_size": 2, "gradient_accumulation_steps": 1, "flops_per_token": 2457600.0,
            "peak_flops_per_s": None, "window": {"skip": 10, "wait": 1, "warmup": 5, "active": 4}, "node": 0,
            "host": "n0", "pid": 50 + rank, "device_name": "a CPU", "host_cpu": "a CPU", "peak_memory_of": "process",
            "versions": {"torch": "2.13.0"}, "unix_ns": BEGAN_NS,
        }  # fmt: skip
        steps = [
            {
                "event": "step", "rank": rank, "step": i, "phase": "active" if i > 15 else "skip",
                "unix_ns": BEGAN_NS + i * STEP_NS, "step_ns": STEP_NS + i, "data_ns": 1_000_000,
                "forward_ns": 20_000_000, "backward_ns": 25_000_000, "optimizer_ns": 4_000_000, "loss": 6.9,
                "lr": 1e-5, "tokens": 384, "samples": 2, "synced": True, "peak_memory_bytes": 403120128,
                "core_wait_ns": 40, "collector_ns": 9, "written_bytes": 0, "page_faults": 0, "continued": 0,
                "cores": "0-1",
            }
            for i in range(20)
        ]  # fmt: skip
        end = {"event": "end", "rank": rank, "status": "completed", "reason": None, "steps": 20}
        file = METRICS.path(run, rank)
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in (start, *steps, end)), encoding="utf-8")


def _monitor(folder: Path) -> None:
    folder.mkdir(parents=True)
    meta = {
        "schema": 1, "host": "n0", "source": "processes", "driver": None,
        "devices": [{"index": 0, "name": "job on 2 CPUs", "uuid": None, "memory_total_bytes": None}], "cpus": 2,
        "machine_cpus": 2, "machine": "m", "machine_memory_bytes": 25276502016, "power": None,
        "period_ns": 1_000_000_000, "started_unix_ns": BEGAN_NS, "watched_pids": [50], "monitor_pid": 51,
    }  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
    head = "unix_ns,device,utilization_percent,memory_used_bytes,processes,machine_utilization_percent,"
    rows = [f"{BEGAN_NS + i * 10**9},0,{40 + i}.5,{10**8 + i},1,45.0,868519936,," for i in range(5)]
    text = "\n".join([f"{head}machine_memory_used_bytes,power_watts,energy_joules", *rows, ""])
    (folder / "samples.csv").write_text(text, encoding="utf-8")


def _files(folder: Path) -> None:
    """A file for every option that takes one, valid or not."""
    folder.mkdir()
    kineto.kineto(folder / "one.json", kineto.gpu_step())
    (folder / "rank0.json.gz").write_bytes(gzip.compress((folder / "one.json").read_bytes(), 1))
    nsys_step().saved(folder / "one.sqlite")
    site = {"name": "mine", "description": "d", "scheduler": "slurm", "account": "a", "setup": ["module purge"]}
    texts = {
        "site.yaml": json.dumps(site),
        "sweep.yaml": SWEEP,
        "alias.yaml": "a: &a [1]\nb: [*a, *a]\n",
        "model.yaml": (MODELS / "tiny-llama.yaml").read_text(encoding="utf-8"),
        "broken.yaml": "a: [",
        "empty.yaml": "",
        "empty.json": "",
        "text.txt": "hello\n",
        "data.json": json.dumps([{"instruction": "a", "input": "", "output": "b"}]),
        "trace-list.json": json.dumps([{"module": "torch.optim", "functions": ["AdamW.step"]}]),
        "run.json": "{}",
        "summary.json": "{}",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint/config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
