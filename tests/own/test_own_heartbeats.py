"""The heartbeats of a training that knows nothing of them, as its rank leaves them in the node's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.common.run_folder.heartbeats import MEMORY, Beat
from harness.common.run_folder.run_files import HEARTBEATS
from harness.heartbeats.collect import Collector
from harness.heartbeats.read import Reader
from tests.exercises.launching import ROOT, free_port
from tests.waiting import limit_s, wait_until

pytestmark = pytest.mark.train

TRAINING = """
import json, os, sys, time, torch
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
MORE_STEPS = 300
ENDS = {
    "evaluates": "before = wait_for(lambda facts: facts['step'] == 5 and facts['collectives'])['calls']\n"
    "model.eval()\nfor _ in range(40):\n    net(torch.ones(2, 8))\n"
    "wait_for(lambda facts: facts['calls'] >= before + 40)\n",
    "raises": "raise ValueError('no such token')\n",
    "diverges": "step(float('nan'))\nstep()\nwait_for(lambda facts: facts['bad_loss'])\n",
    # each look at PyTorch's record of collectives waits for a core; no step is forgotten before it is read
    "goes on": "from harness.observe import heartbeat\nheartbeat.STORED_S = 3600.0\n"
    "at = torch._C._distributed_c10d\nname = '_dump_fr_trace'\nlooked = getattr(at, name)\n"
    "setattr(at, name, lambda *asked: (time.sleep(0.1), looked(*asked))[1])\n"
    f"for _ in range({MORE_STEPS}):\n    time.sleep(0.005)\n    step()\n"
    "while not os.path.exists(sys.argv[1]):\n    time.sleep(0.05)\n",
}


@contextmanager
def training(folder: Path, end: str) -> Iterator[subprocess.Popen[str]]:
    """Start the training, which ends in this way; killed at the end."""
    script, memory = folder / "train.py", folder / "memory"
    script.write_text(TRAINING + ENDS[end], encoding="utf-8")
    memory.mkdir(exist_ok=True)
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
    pipe = subprocess.PIPE
    argv = [sys.executable, str(script), str(folder / "goes on")]
    with subprocess.Popen(argv, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def trained(folder: Path, end: str) -> dict[str, Any]:
    """The last heartbeat of a training that has ended."""
    with training(folder, end) as process:
        _, said = process.communicate(timeout=limit_s())
    assert process.returncode == (end == "raises"), said
    return dict(json.loads((folder / "memory" / "rank0.json").read_text(encoding="utf-8")))


def test_calls_of_the_model_inside_a_wrapper_are_progress(tmp_path: Path) -> None:
    facts = trained(tmp_path, "evaluates")  # comes to its end if an evaluation that calls the inner model is no hang
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


@pytest.mark.long  # as the others, on a machine that is made busy
def test_on_a_busy_machine_all_steps_and_samples_are_told(tmp_path: Path, busy: None) -> None:
    (tmp_path / "memory").mkdir()

    def told() -> tuple[int, int]:
        """How many steps and samples are in the node's file."""
        lines = [json.loads(line) for line in HEARTBEATS.path(tmp_path, "n1").read_text().splitlines()]
        lines = [line for line in lines if line["event"] == "beat"]
        beats = [Beat(*beat) for line in lines for beat in line["ranks"]]
        return sum(beat.per * len(beat.steps) // 2 for beat in beats), sum(line["samples"] for line in lines)

    every = 5 + MORE_STEPS
    with Collector(tmp_path, tmp_path / "memory", "n1", 0), training(tmp_path, "goes on"):
        told_all = (every, 2 * (every - 1))  # the first step's samples are not known
        wait_until(lambda: told() >= told_all, f"{every} steps of two samples", told, 60)
        assert told() == told_all
        assert Reader(tmp_path).read().ranks[0].step == every


@pytest.mark.long  # test_observe.py has a training that fails
def test_an_exception_is_told_with_the_users_line(tmp_path: Path) -> None:
    facts = trained(tmp_path, "raises")
    error = facts["error"]
    assert (error["type"], error["message"]) == ("ValueError", "no such token")
    line = (TRAINING + ENDS["raises"]).splitlines().index("raise ValueError('no such token')") + 1
    assert error["place"] == [str(tmp_path / "train.py"), line, "<module>"]
    assert facts["ended_ns"] == 0


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
