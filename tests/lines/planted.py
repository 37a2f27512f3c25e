"""Tiny trainings of two ranks on CPUs, with a stall at a known line, recorded as a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PLACES = ("data", "forward", "loop")
STALLS = {
    "sleep": "time.sleep({ms} / 1e3)",
    "python": "while time.perf_counter() < begun + {ms} / 1e3: pass",
    "file": "while time.perf_counter() < begun + {ms} / 1e3: open(__file__, 'rb').read()",
    "lock": "held.acquire(timeout={ms} / 1e3)",
    "operators": "while time.perf_counter() < begun + {ms} / 1e3: torch.tanh(extra)",
    "all_reduce": "dist.all_reduce(torch.ones({ms} * 100_000))",
}
WORLD = 2


@dataclass(frozen=True)
class Plant:
    """A stall at a place of the program, on some ranks, in every k-th step."""

    stall: str
    place: str
    ranks: Sequence[int]
    every: int = 1
    ms: int = 20


def record(folder: Path, plant: Plant | None) -> int | None:
    """Trains and records into `folder`, a run's directory. Returns the planted line of `train.py`."""
    lines = (HERE / "program.py.txt").read_text().splitlines()
    found = None
    for number, line in enumerate(lines):
        indent, _, place = line.partition("# PLANT ")
        if place:
            mine = plant is not None and place == plant.place
            lines[number] = indent + (_statement(plant) if mine and plant else "pass")
            found = number + 1 if mine else found
            if mine and plant:
                lines[number - 1] = f"{indent}begun = time.perf_counter() if {_condition(plant)} else 0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    script = folder / "train.py"
    script.write_text("\n".join(lines) + "\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(WORLD),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            env=os.environ | given | {"RANK": str(rank), "PYTHONPATH": str(HERE.parents[1])},
        )
        for rank in range(WORLD)
    ]
    assert [rank.wait(120) for rank in ranks] == [0] * WORLD
    return found


def _condition(plant: Plant) -> str:
    return f"rank in {tuple(plant.ranks)} and now.step % {plant.every} == 0"


def _statement(plant: Plant) -> str:
    said = STALLS[plant.stall].format(ms=plant.ms)
    return said if said.startswith("while") else f"begun and {said}"
