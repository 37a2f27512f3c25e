"""The heartbeats of a training that knows nothing of them, as its rank leaves them in the node's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.common.run_folder.heartbeats import MEMORY
from tests.exercises.launching import ROOT, free_port
from tests.waiting import limit_s

pytestmark = pytest.mark.train

TRAINING = """
import json, os, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def wait_for(holds):
    while True:
        text = open(os.path.join(os.environ["HARNESS_HEARTBEATS"], "rank0.json")).read()
        try:
            facts = json.loads(text)  # empty before the first, and cut where it is written
        except ValueError:
            facts = None
        if facts and holds(facts):
            return facts
        time.sleep(0.05)

def step(scale=1.0):
    loss = (model(torch.ones(2, 8)) * scale).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(5):
    step()
"""
ENDS = {
    "evaluates": "before = wait_for(lambda facts: facts['step'] == 5 and facts['collectives'])['calls']\n"
    "model.eval()\nfor _ in range(40):\n    net(torch.ones(2, 8))\n"
    "wait_for(lambda facts: facts['calls'] >= before + 40)\n",
    "diverges": "step(float('nan'))\nstep()\nwait_for(lambda facts: facts['bad_loss'])\n",
}


def trained(folder: Path, end: str) -> dict[str, Any]:
    """The last heartbeat of a training that ends in this way."""
    script, memory = folder / "train.py", folder / "memory"
    script.write_text(TRAINING + ENDS[end], encoding="utf-8")
    memory.mkdir()
    window = {"skip": 1000, "wait": 0, "warmup": 1, "active": 1}
    settings = {"mode": "steps", "profiler": "none", "window": window, "faults": []}
    (folder / "observe.json").write_text(json.dumps(settings), encoding="utf-8")
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    environment = {
        **os.environ,
        **place,
        "MASTER_PORT": str(free_port()),
        "HARNESS_OBSERVE": str(folder / "observe.json"),
        "PYTHONPATH": str(ROOT / "harness" / "observe" / "site"),
        MEMORY: str(memory),
    }
    argv = [sys.executable, str(script)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=limit_s())
    assert done.returncode == 0, done.stderr
    return dict(json.loads((memory / "rank0.json").read_text(encoding="utf-8")))


def test_calls_of_the_model_inside_a_wrapper_are_progress(tmp_path: Path) -> None:
    facts = trained(tmp_path, "evaluates")  # comes to its end if an evaluation that calls the inner model is no hang
    assert facts["step"] == 5
    assert [step[0] for step in facts["done"]] == [0, 1, 2, 3, 4]
    assert (facts["collectives"] or 0) > 0
    assert facts["ended_ns"] > 0
    assert facts["error"] is None


def test_the_weights_that_gave_a_loss_that_is_not_finite_are_looked_at(tmp_path: Path) -> None:
    facts = trained(tmp_path, "diverges")
    assert facts["bad_loss"] == {"step": 5, "loss": "nan", "weights": True}


LEAVES = """
import os, sys, threading, time, torch
import torch.distributed as dist
from harness.observe import collectives, heartbeat
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
counted, entered = collectives.counted, threading.Event()

def inside_pytorch():
    entered.set()
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        counted()
    return 0

collectives.counted = inside_pytorch
heartbeat.begin(rank=0, world=1, local=0)
entered.wait()
"""


FREES = """
import atexit, gc, sys, time, torch
import torch.distributed as dist
from harness.observe import heartbeat
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)

def end():
    # garbage that the next thread frees which makes an object: groups, whose end in C++ waits for their threads
    gc.disable()
    store = dist.HashStore()
    for number in range(30):
        cycle = [dist.ProcessGroupGloo(dist.PrefixStore(str(number), store), 0, 1)]
        cycle.append(cycle)
    del cycle, store
    gc.set_threshold(1, 1, 1)
    gc.enable()
    time.sleep(0.001)

atexit.register(end)
heartbeat.BEAT_S = 0.001
heartbeat.begin(rank=0, world=1, local=0)
time.sleep(0.3)
"""


@pytest.mark.parametrize(
    "program",
    [pytest.param(LEAVES, id="calls it"), pytest.param(FREES, id="frees its objects", marks=pytest.mark.long)],
)
def test_python_ends_as_without_the_heartbeat_that_is_inside_pytorch(tmp_path: Path, program: str) -> None:
    (tmp_path / "memory").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, MEMORY: str(tmp_path / "memory")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(),
    )
    assert (done.returncode, done.stderr) == (0, "")
