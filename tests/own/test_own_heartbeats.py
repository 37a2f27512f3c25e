"""The heartbeats of a training that knows nothing of them, as its rank leaves them in the node's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.common.heartbeats import MEMORY, Beat
from harness.common.run_files import HEARTBEATS
from harness.heartbeats.collect import Collector
from harness.heartbeats.read import Reader
from tests.exercises.launching import ROOT, free_port
from tests.waiting import limit_s

pytestmark = pytest.mark.train

TRAINING = """
import json, os, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
read = lambda: json.load(open(os.path.join(os.environ["HARNESS_HEARTBEATS"], "rank0.json")))

def step(scale=1.0):
    loss = (model(torch.ones(2, 8)) * scale).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(5):
    step()
"""
ENDS = {
    "evaluates": "before = read()['calls']\nmodel.eval()\nfor _ in range(40):\n    net(torch.ones(2, 8))\n"
    "    time.sleep(0.05)\nprint(read()['calls'] - before)\ntime.sleep(2.5)\n",
    "raises": "raise ValueError('no such token')\n",
    "diverges": "step(float('nan'))\nstep()\ntime.sleep(1)\n",
    # each look at PyTorch's record of collectives waits for a core
    "goes on": "at = torch._C._distributed_c10d\nname = '_dump_fr_trace'\nlooked = getattr(at, name)\n"
    "setattr(at, name, lambda *asked: (time.sleep(0.1), looked(*asked))[1])\n"
    "begin, ends = time.monotonic(), []\nwhile time.monotonic() < begin + 14:\n    time.sleep(0.005)\n"
    "    step()\n    ends.append(time.time_ns())\nprint(json.dumps(ends))\n",
}


def trained(folder: Path, end: str) -> tuple[str, dict[str, Any]]:
    """What the training printed, and its last heartbeat."""
    script, memory = folder / "train.py", folder / "memory"
    script.write_text(TRAINING + ENDS[end], encoding="utf-8")
    memory.mkdir(exist_ok=True)
    window = {"skip": 1000, "wait": 0, "warmup": 1, "active": 1}
    settings = {"mode": "steps", "profiler": "none", "window": window, "profile_memory": False, "faults": []}
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
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False, timeout=limit_s()
    )
    return done.stdout, json.loads((memory / "rank0.json").read_text(encoding="utf-8"))


def test_calls_of_the_model_inside_a_wrapper_are_progress(tmp_path: Path) -> None:
    said, facts = trained(tmp_path, "evaluates")
    assert int(said) >= 20, "an evaluation that calls the inner model is no hang"
    assert facts["step"] == 5
    assert [step[0] for step in facts["done"]] == [0, 1, 2, 3, 4]
    assert (facts["collectives"] or 0) > 0
    assert facts["ended_ns"] > 0
    assert facts["error"] is None


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[None]:
    """Four other programs compute, from the first heartbeat on."""
    begun = tmp_path / "memory" / "rank0.json"
    computes = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", computes, str(begun)]) for _ in range(4)]
    yield
    for other in others:
        other.kill()
        other.wait(limit_s())


def test_on_a_busy_machine_all_steps_and_samples_are_told_at_their_pace(tmp_path: Path, busy: None) -> None:
    (tmp_path / "memory").mkdir()
    with Collector(tmp_path, tmp_path / "memory", "n1", 0):
        said, _ = trained(tmp_path, "goes on")
    ends_ns = np.array(json.loads(said))
    live = Reader(tmp_path).read()
    lines = [json.loads(line) for line in HEARTBEATS.path(tmp_path, "n1").read_text().splitlines()]
    beats = [Beat(*beat) for line in lines if line["event"] == "beat" for beat in line["ranks"]]
    told = sum(beat.per * len(beat.steps) // 2 for beat in beats)
    assert told == pytest.approx(len(ends_ns), rel=0.15), "the last two seconds are in no beat"
    assert live.ranks[0].recent_us == pytest.approx(np.diff(ends_ns).mean() / 1e3, rel=0.5)
    seen = [line for line in live.nodes["n1"].processed if line.unix_ns > ends_ns[0]]
    steps = np.searchsorted(ends_ns, seen[-1].unix_ns) - np.searchsorted(ends_ns, seen[0].unix_ns)
    assert sum(line.samples or 0 for line in seen[1:]) == pytest.approx(2 * steps, rel=0.1), "two samples a step"


def test_an_exception_is_told_with_the_users_line(tmp_path: Path) -> None:
    _, facts = trained(tmp_path, "raises")
    error = facts["error"]
    assert (error["type"], error["message"]) == ("ValueError", "no such token")
    line = (TRAINING + ENDS["raises"]).splitlines().index("raise ValueError('no such token')") + 1
    assert error["place"] == [str(tmp_path / "train.py"), line, "<module>"]
    assert facts["ended_ns"] == 0


def test_the_weights_that_gave_a_loss_that_is_not_finite_are_looked_at(tmp_path: Path) -> None:
    _, facts = trained(tmp_path, "diverges")
    assert facts["bad_loss"] == {"step": 5, "loss": "nan", "weights": True}


LEAVES = """
import os, sys, time, torch
import torch.distributed as dist
from harness.observe import collectives, heartbeat
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
counted = collectives.counted

def inside_pytorch():
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        counted()
    return 0

collectives.counted = inside_pytorch
heartbeat.begin(rank=0, world=1, local=0)
time.sleep(0.5)
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


@pytest.mark.parametrize("program", [pytest.param(LEAVES, id="calls it"), pytest.param(FREES, id="frees its objects")])
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
