"""Starts the trainings of `scripts` with their own launchers, with the observer beside them as a job loads it."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from own_trainings import SCRIPTS, TRAININGS, Training

from harness.common.run_folder.heartbeats import MEMORY
from tests.exercises.launching import ROOT, free_port
from tests.waiting import limit_s

SITE = ROOT / "harness/observe/site"
WINDOW = {"skip": 3, "wait": 0, "warmup": 1, "active": 4}
PLAIN = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
TIMEOUT_S = 240


@dataclass(frozen=True)
class Ended:
    """A training that has ended: what its ranks wrote about themselves, and what the observer wrote."""

    training: Training
    folder: Path
    log: str

    @property
    def ranks(self) -> range:
        """The numbers of its ranks."""
        return range(self.training.ranks)

    def truth(self, rank: int) -> dict[str, Any]:
        """What the training itself measured."""
        return dict(json.loads((self.folder / f"truth.rank{rank}").read_text(encoding="utf-8")))

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """The step lines of the observer."""
        text = (self.folder / f"metrics/rank{rank}.jsonl").read_text(encoding="utf-8")
        return [line for line in map(json.loads, text.splitlines()) if line["event"] == "step"]

    def trace(self, rank: int) -> list[dict[str, Any]]:
        """The events of the rank's trace."""
        packed = (self.folder / f"torch/rank{rank}.json.gz").read_bytes()
        return list(json.loads(gzip.decompress(packed))["traceEvents"])


def training_of(name: str) -> Training:
    """A training by its name; skips the test where its package is missing."""
    training = TRAININGS[name]
    if training.package is not None and find_spec(training.package) is None:
        pytest.skip(f"{training.package} is not installed")
    return training


@dataclass(frozen=True)
class Running:
    """A training that was started."""

    training: Training
    folder: Path
    process: subprocess.Popen[str]

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def ended(self) -> Ended:
        """Wait for its end.

        Raises AssertionError: it failed.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=limit_s(TIMEOUT_S))
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.wait(limit_s()) == 0, self.log
        return Ended(self.training, self.folder, self.log)


def start(
    training: Training,
    folder: Path,
    options: Sequence[str],
    *,
    asked: Mapping[str, Any] | None,
    scripts: Path = SCRIPTS,
    words: Sequence[str] = (),
) -> Running:
    """Start a training as the leader of a process group, with its output in `folder/log`.

    asked: changes of observe.json, None for no observer. words: before its own command; runs that they make are in
    `folder/runs`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **PLAIN, **dict(training.environment)}
    environment.pop("PYTHONPATH", None)
    if asked is not None:
        settings = folder / "observe.json"
        content = {"mode": "steps", "profiler": "torch", "window": WINDOW, "faults": []}
        settings.write_text(json.dumps({**content, **asked}), encoding="utf-8")
        memory = folder / "memory"
        memory.mkdir()
        environment |= {"HARNESS_OBSERVE": str(settings), "PYTHONPATH": str(SITE), MEMORY: str(memory)}
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*words, *training.command([*options, "--truth", str(folder / "truth")], free_port())],
            cwd=scripts,
            env={**environment, "HARNESS_RUNS": str(folder / "runs")},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    return Running(training, folder, process)
