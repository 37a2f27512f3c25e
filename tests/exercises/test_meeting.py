"""All ranks of a node share one nsys: recording begins when the last one is ready and ends when the last one is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the training scripts need PyTorch")

ROOT = Path(__file__).resolve().parents[2]
# Rank 1 is late for every step. Each rank writes down when it came to a meeting and when it went on.
RANK = """
import json, sys, time
import torch.distributed as dist
from exercises.utils.window import NsysCapture, Window

folder, rank, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
times = {}

def timed(call, step):
    came = time.monotonic_ns()
    call(step)
    times[f"{call.__name__} {step}"] = (came, time.monotonic_ns())

with NsysCapture(Window(skip=1, wait=0, warmup=0, active=2)) as capture:
    for step in range(last + 1):
        time.sleep(0.4 * rank)
        timed(capture.step_begins, step)
        timed(capture.step_ends, step)
times["left"] = (time.monotonic_ns(), time.monotonic_ns())
with open(f"{folder}/rank{rank}.json", "w") as file:
    json.dump(times, file)
"""

Times = dict[str, tuple[int, int]]


def run(folder: Path, last_step: int) -> list[Times]:
    """Both ranks' times, after they went as far as the last step."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(folder), str(rank), str(last_step)], env=env)
        for rank in range(2)
    ]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_ranks_meet_where_recording_begins_and_ends_and_nowhere_else(tmp_path: Path) -> None:
    early, late = run(tmp_path, last_step=3)
    for meeting in ("step_begins 1", "step_ends 2"):
        assert early[meeting][1] >= late[meeting][0], meeting
    for elsewhere in ("step_begins 0", "step_ends 1", "step_begins 2"):
        assert early[elsewhere][1] < late[elsewhere][0], elsewhere


def test_who_leaves_inside_the_window_waits_for_nobody(tmp_path: Path) -> None:
    early, late = run(tmp_path, last_step=1)
    assert early["left"][1] < late["step_ends 1"][0]
