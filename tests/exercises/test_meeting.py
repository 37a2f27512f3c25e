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
# Rank 1 is always late: for a barrier by a moment, elsewhere until rank 0 has continued without it. Each rank
# writes when it arrives and when it continues, so a rank that waits where there is no barrier never arrives.
RANK = """
import json, sys, time
from pathlib import Path
import torch.distributed as dist
from harness.observe.capture import NsysCapture
from harness.common.profile_window import ProfileWindow

folder, rank, last, meetings = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
times = {}

def be_late(name):
    if name in meetings:
        time.sleep(0.4)
        return
    wait_for(folder / f"rank0 went on from {name}")

def wait_for(file):
    while not file.exists():
        time.sleep(0.01)

def timed(call, step):
    name = f"{call.__name__} {step}"
    if rank == 1:
        be_late(name)
    came = time.monotonic_ns()
    call(step)
    times[name] = (came, time.monotonic_ns())
    (folder / f"rank{rank} went on from {name}").touch()

with NsysCapture(ProfileWindow(skip=1, wait=0, warmup=0, active=2)) as capture:
    for step in range(last + 1):
        timed(capture.step_begins, step)
        timed(capture.step_ends, step)
    if rank == 1:
        wait_for(folder / "rank0 left")
(folder / f"rank{rank}.json").write_text(json.dumps(times))
(folder / f"rank{rank} left").touch()
"""

Times = dict[str, tuple[int, int]]


def run(folder: Path, last_step: int, meetings: list[str]) -> list[Times]:
    """The times of both ranks, after the last step."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env["GLOO_SOCKET_IFNAME"] = "lo"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder), str(rank), str(last_step), *meetings], env=env
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_ranks_meet_where_recording_begins_and_ends_and_nowhere_else(tmp_path: Path) -> None:
    meetings = ["step_begins 1", "step_ends 2"]
    early, late = run(tmp_path, last_step=3, meetings=meetings)
    assert {meeting: early[meeting][1] >= late[meeting][0] for meeting in meetings} == dict.fromkeys(
        meetings, True
    )


def test_a_rank_that_ends_inside_the_window_does_not_wait_for_the_others(tmp_path: Path) -> None:
    run(tmp_path, last_step=1, meetings=["step_begins 1"])
