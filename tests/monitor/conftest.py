"""Folders of samples to read, made by the monitor's own writer, and a way to run it as its users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from harness.common.run_folder.run_files import MONITORS
from harness.monitor.record import SampleFile
from harness.monitor.source import SampleSource
from tests.waiting import limit_s, wait_until

REPOSITORY = Path(__file__).parents[2]
START_UNIX_NS = 1_700_000_000_000_000_000
WORKLOAD = "import time; block = bytearray(64 * 2**20); print('ready', flush=True); time.sleep(60)"
BUSY = "print('ready', flush=True)\nwhile True: pass"

Write = Callable[..., Path]
Start = Callable[..., "subprocess.Popen[str]"]


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
def start() -> Iterator[Start]:
    """Starts a program with this Python (modules in `first` come first on its path) and ends it afterwards."""
    running: list[subprocess.Popen[str]] = []

    def popen(
        *argv: str | Path | int, first: Sequence[Path] = (), program: str = sys.executable
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*first, REPOSITORY)))}
        process = subprocess.Popen(
            [program, *map(str, argv)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        running.append(process)
        return process

    yield popen
    for process in running:
        process.kill()
        process.communicate(timeout=limit_s())


def recorder(start: Start, run: Path, *words: str | int, first: Sequence[Path] = ()) -> subprocess.Popen[str]:
    """The program of a node, ten samples a second of what this process starts; words: other flags."""
    argv = ["-m", "harness.heartbeats.node", f"--run={run}", "--node=0", "--name=node7", "--hz=10"]
    return start(*argv, *(words or ("--below", os.getpid())), first=first)


def samples_of(run: Path) -> Path:
    """The folder of a run with the samples of `recorder`."""
    return MONITORS.path(run, "node7")


def wait_for_samples(run: Path, count: int) -> None:
    path = samples_of(run) / "samples.csv"
    wait_until(
        lambda: path.exists() and len(path.read_text().splitlines()) > count, f"{count} samples in {path}",
        lambda: path.exists() and path.read_text(),
    )  # fmt: skip


def start_workload(start: Start, code: str = WORKLOAD) -> subprocess.Popen[str]:
    process = start("-c", code)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def rows_of(source: SampleSource) -> list[dict[str, object]]:
    """A sample of each device, by column."""
    return [dict(zip(source.columns, row, strict=True)) for row in source.sample()]
