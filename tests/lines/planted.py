"""Tiny trainings of two ranks on CPUs, with a stall at a known line, recorded as a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import limit_s

HERE = Path(__file__).parent
PROGRAM = HERE / "program.py.txt"
UNTIL = "while time.perf_counter() < begun + {ms} / 1e3: "
STALLS = {
    "sleep": "time.sleep({ms} / 1e3)",
    "python": f"{UNTIL}pass",
    "file": f"{UNTIL}open(__file__, 'rb').read()",
    "lock": "held.acquire(timeout={ms} / 1e3)",
    "operators": f"{UNTIL}torch.tanh(extra)",
    "all-reduce": "dist.all_reduce(torch.ones({ms} * 200_000))",
}
WORLD = 2


@dataclass(frozen=True)
class Plant:
    """A stall at a place of the program (data, forward, loop), on some ranks, in every k-th step."""

    stall: str
    place: str
    ranks: Sequence[int]
    every: int = 1
    ms: int = 30


def record(folder: Path, plant: Plant) -> int:
    """Trains and records into `folder`, a run's directory. Returns the planted line of its `train.py`."""
    lines, planted = PROGRAM.read_text(encoding="utf-8").splitlines(), 0
    for number, line in enumerate(lines):
        indent, _, place = line.partition("# PLANT ")
        if place == plant.place:
            stall = STALLS[plant.stall].format(ms=plant.ms)
            lines[number - 1] = f"{indent}begun = time.perf_counter() if {_condition(plant)} else 0"
            lines[number] = indent + (stall if stall.startswith("while") else f"begun and {stall}")
            planted = number + 1
    script = folder / "train.py"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _train(script, folder)
    return planted


def _condition(plant: Plant) -> str:
    return f"rank in {tuple(plant.ranks)} and now.step % {plant.every} == 0"


def _train(script: Path, run: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(WORLD),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(run)], env=os.environ | given | {"RANK": str(rank)})
        for rank in range(WORLD)
    ]
    ended = [rank.wait(limit_s()) for rank in ranks]
    assert ended == [0] * WORLD
