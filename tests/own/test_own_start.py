"""A process without RANK that waits before it trains shows itself as the rank that it is; no other process does."""

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
from tests.waiting import LIMIT_S, limit_s, wait_until

pytestmark = pytest.mark.train

# The observer looks sooner, and only once PyTorch is there, as reading it from a busy disk is a wait too. A script that
# is no rank ends once it has had the time to look several times.
BEGIN = """
import os, subprocess, sys, threading, time
import torch.distributed as dist
from harness.observe import start_watch
start_watch.LOOK_S = 0.3
threading.Timer(float(sys.argv[2]), lambda: os.kill(os.getpid(), 9)).start()
start_watch.watch_start()
here = f"tcp://127.0.0.1:{sys.argv[1]}"
"""
WAITS = {
    "meets": ("dist.init_process_group('gloo', init_method=here, rank=1, world_size=3)", (1, 3)),
    "meets by a store": (
        "store = dist.TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True, wait_for_workers=False)\\n"
        "dist.init_process_group('gloo', store=store, rank=2, world_size=4)", (2, 4),
    ),
    "sets RANK itself": ("os.environ.update(RANK='3', WORLD_SIZE='8')\\nos.read(os.pipe()[0], 1)", (3, 8)),
    "reads": ("os.read(os.pipe()[0], 1)", (0, 1)),
    "computes": ("while True: pass", None),
    "has started Python": ("subprocess.run([sys.executable, '-c', 'import time; time.sleep(6)'])", None),
    "has started another program": ("subprocess.run(['sleep', '60'])", (0, 1)),
}  # fmt: skip


def shown(memory: Path) -> list[dict[str, Any]]:
    """The heartbeats in a node's memory. A file is empty until its first heartbeat."""
    texts = [path.read_text() for path in memory.glob("rank*.json") if "stacks" not in path.name]
    return [json.loads(text) for text in texts if text]


SHOWN = ("meets",)  # the others are found in the same ways


@pytest.mark.parametrize(
    "what", [pytest.param(each, marks=() if each in SHOWN else pytest.mark.long) for each in WAITS]
)
def test_a_start_that_waits_is_a_rank(tmp_path: Path, what: str) -> None:
    does, is_rank = WAITS[what]
    script = tmp_path / "train.py"
    script.write_text(BEGIN + does.replace("\\n", "\n") + "\n")
    outer = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "NODE_RANK")}
    environ = {**outer, "PYTHONPATH": str(ROOT), MEMORY: str(tmp_path)}
    argv = [sys.executable, str(script), str(free_port()), str(limit_s() if is_rank else 3)]
    nowhere = subprocess.DEVNULL  # what it started outlives it
    with subprocess.Popen(argv, env=environ, stdout=nowhere, stderr=nowhere) as process:
        try:
            wait_until(
                lambda: process.poll() is not None or any(each["place"] for each in shown(tmp_path)),
                "a rank, or the script's end", lambda: shown(tmp_path), 2 * LIMIT_S,
            )  # fmt: skip
        finally:
            process.kill()
    found = shown(tmp_path)
    assert [(each["rank"], each["world"]) for each in found] == ([is_rank] if is_rank else [])
    assert all(each["place"][0] == str(script) for each in found)


def test_a_rank_that_learns_its_number_later_has_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from harness.observe import heartbeat\nheartbeat.begin(0, 1, 0)\nheartbeat.begin(2, 4, 2)\n"
        "heartbeat.over()\nprint(heartbeat.has_begun())\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), MEMORY: str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, check=True, timeout=limit_s(), capture_output=True
    )
    assert done.stdout == b"True\n"
    (found,) = (json.loads(path.read_text()) for path in tmp_path.glob("rank*.json"))
    assert (found["rank"], found["world"], found["local"]) == (2, 4, 2)
