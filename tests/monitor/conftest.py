"""Folders of samples to read, made by the monitor's own writer, and a way to run it as its users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from harness.monitor.record import SampleFile
from tests.waiting import limit_s

REPOSITORY = Path(__file__).parents[2]
START_UNIX_NS = 1_700_000_000_000_000_000

Write = Callable[..., Path]


@pytest.fixture
def write_samples(tmp_path: Path) -> Write:
    """Writes a folder of one device per list of rows, a row per second."""

    def write(
        columns: Sequence[str], *devices: Sequence[Sequence[float | None]], source: str = "nvml", **meta: object
    ) -> Path:
        entries = [{"index": i, "name": "NVIDIA H200", "memory_total_bytes": 2**37} for i in range(len(devices))]
        about = {"schema": 1, "host": "node1", "source": source, "devices": entries, "period_ns": 10**9, "power": None}
        folder = tmp_path / "node1"
        folder.mkdir()
        (folder / "meta.json").write_text(json.dumps({**about, **meta}))
        samples = SampleFile(folder / "samples.csv", columns)
        for second, rows in enumerate(zip(*devices, strict=True)):
            samples.append(START_UNIX_NS + second * 10**9, range(len(devices)), rows)
        return folder

    return write


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program (by default the monitor; modules in `first` come first on its path) and ends it afterwards."""
    running: list[subprocess.Popen[str]] = []

    def popen(
        *argv: str | Path,
        program: Sequence[str] = (sys.executable, "-m", "harness.monitor"),
        first: Sequence[Path] = (),
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*first, REPOSITORY)))}
        process = subprocess.Popen(
            [*program, *map(str, argv)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        running.append(process)
        return process

    yield popen
    for process in running:
        process.kill()
        process.communicate(timeout=limit_s())
