"""Trainings that know nothing of it run out of a real cgroup's memory: by growth, at a peak, beside another process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.common.run_folder.heartbeats import MEMORY
from harness.common.run_folder.run_files import HEARTBEATS
from harness.heartbeats.collect import Collector
from harness.heartbeats.dead import first_death
from tests.common.cgroups import V1, V2, Cgroup, cgroup
from tests.own.observed_trainings import PLAIN, SITE
from tests.waiting import limit_s, wait_until

pytestmark = pytest.mark.train

LIMIT = 900 << 20
# In the third step the rank waits until its end would be seen. Of several processes the kernel ends the rank.
TRAINING = """
import os, sys, time
sys.stdin.read(1)
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = []
for step in range(200):
    model(torch.ones(2, 8)).sum().backward()
    if step == 2:
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.02)
    {}
    optimizer.step()
    optimizer.zero_grad()
"""
KILLED = ": the kernel killed it: the job used more memory than its cgroup allows (last seen at train.py:"
EATER = """
import time
held = b'x' * (350 << 20)
print(flush=True)
time.sleep(99)
"""


@pytest.fixture(params=[V1, V2])
def limited(request: pytest.FixtureRequest) -> Iterator[Cgroup]:
    with cgroup(request.param) as made:
        made.limit(LIMIT)
        yield made


def started(group: Cgroup, *argv: str, **known: str) -> subprocess.Popen[str]:
    """A program of Python in the cgroup, which begins."""
    environment = {**os.environ, **PLAIN, **known}
    pipe = subprocess.PIPE
    program = subprocess.Popen([sys.executable, *argv], env=environment, stdin=pipe, stdout=pipe, text=True)
    group.add(program.pid)
    assert program.stdin is not None
    program.stdin.write("x")
    program.stdin.close()
    return program


def killed(run: Path, group: Cgroup, inside: str) -> str:
    """What is said of a training that the kernel has killed in the cgroup. inside: a line in each step."""
    memory, seen, script = run / "memory", run / "seen", run / "train.py"
    memory.mkdir()
    script.write_text(TRAINING.format(inside), encoding="utf-8")
    window = {"skip": 9999, "wait": 0, "warmup": 1, "active": 1}
    asked = {"mode": "steps", "profiler": "none", "window": window, "faults": []}
    (run / "observe.json").write_text(json.dumps(asked), encoding="utf-8")
    known = {"HARNESS_OBSERVE": str(run / "observe.json"), "PYTHONPATH": str(SITE), MEMORY: str(memory)}
    beats = HEARTBEATS.path(run, "n1")
    with Collector(run, memory, "n1", 0):
        program = started(group, str(script), str(seen), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", **known)
        wait_until(lambda: '"rank"' in beats.read_text(), "the rank", beats.read_text)
        seen.touch()
        assert program.wait(limit_s()) == -9
    death = first_death(run)
    return death.sentence if death is not None else ""


def test_memory_that_grows(limited: Cgroup, tmp_path: Path) -> None:
    said = killed(tmp_path, limited, "held.append(torch.ones(4 << 20))")
    assert KILLED in said
    assert re.search(r"; of 944 MB on its host, the rank last had \d+ MB: its memory grew by 16\.\d MB a step", said), (
        said
    )


def test_a_peak(limited: Cgroup, tmp_path: Path) -> None:
    said = killed(tmp_path, limited, "held = torch.ones(400 << 20) if step == 20 else None")
    assert KILLED in said
    assert said.startswith("rank 0 failed first, in step 20: "), said
    assert said.endswith(" MB: a peak inside a step took the rest"), said


def test_beside_a_process_that_has_most_of_it(limited: Cgroup, tmp_path: Path) -> None:
    eater = started(limited, "-c", EATER)
    assert eater.stdout is not None
    assert eater.stdout.readline() == "\n"
    said = killed(tmp_path, limited, "held = torch.ones(120 << 20) if step == 20 else None")
    eater.kill()
    assert KILLED in said
    assert re.search(r": other processes had 3\d\d MB$", said), said
