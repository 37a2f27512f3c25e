"""Starts exercise 3's training as the harness does, on this machine's CPU, and reads what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from threading import Timer
from typing import Any

from tests.exercises.launching import free_port, trace_events

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300
SCRIPT = ROOT / "exercises" / "exercise_3_MegatronLM" / "train.py"
MODELS = ROOT / "configs" / "models"


@dataclass(frozen=True)
class Span:
    """A range of the profile; times in microseconds of the machine's clock, thread as Kineto numbers it."""

    name: str
    start: float
    end: float
    thread: int

    def holds(self, other: Span) -> bool:
        """True when `other` lies inside, on the same thread."""
        return self.thread == other.thread and self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Run:
    """A training that has ended."""

    folder: Path
    exit_code: int
    output: str

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        """The rank's metrics, line by line."""
        text = (self.folder / "metrics" / f"rank{rank}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.lines(rank) if line["event"] == "step"]

    def losses(self, rank: int = 0) -> list[float]:
        return [step["loss"] for step in self.steps(rank)]

    @cached_property
    def _spans(self) -> dict[int, list[Span]]:
        traces = sorted((self.folder / "torch").glob("rank*.json.gz"))
        return {int(path.name[4:].split(".")[0]): _read_spans(path) for path in traces}

    def spans(self, rank: int, word: str = "") -> list[Span]:
        """The rank's ranges that begin with `word`, in order of their start."""
        return [span for span in self._spans[rank] if span.name.startswith(word)]


def _read_spans(path: Path) -> list[Span]:
    ranges = [event for event in trace_events(path) if event.get("cat") == "user_annotation"]
    spans = [Span(e["name"], float(e["ts"]), float(e["ts"]) + float(e["dur"]), e["tid"]) for e in ranges]
    return sorted(spans, key=lambda span: span.start)


def command(folder: Path, *flags: object, processes: int = 2, model: str = "tiny-mistral") -> list[str]:
    """The launch of one training on this machine."""
    launcher = [
        "-m",
        "exercises.utils.launch",
        "torchrun",
        "--nnodes",
        "1",
        "--node-rank",
        "0",
        "--master-addr",
        "127.0.0.1",
    ]
    where = ["--nproc-per-node", str(processes), "--master-port", str(free_port())]
    return [sys.executable, *launcher, *where, str(SCRIPT), *_words(folder, model, flags)]


def _words(folder: Path, model: str, flags: tuple[object, ...]) -> list[str]:
    words = ["--run-dir", folder, "--model", MODELS / f"{model}.yaml", "--device", "cpu", *flags]
    return list(map(str, words))


def environment() -> dict[str, str]:
    """What the harness sets for a training on this machine's CPU."""
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **ours, "CUDA_VISIBLE_DEVICES": ""}


def train_launched(folder: Path, *flags: object) -> Run:
    """Train to the end under the launcher that the harness uses."""
    done = subprocess.run(
        command(folder, *flags), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return Run(folder, done.returncode, done.stdout)


def train(
    folder: Path, *flags: object, processes: int = 2, model: str = "tiny-mistral", first: bool = False
) -> Run:
    """Train to the end without a launcher. `first`: with the highest priority, where that is allowed."""
    log = folder.with_suffix(".log")
    order = {"processes": processes, "port": free_port(), "log": str(log), "first": first}
    server = _ranks()
    assert server.stdin is not None and server.stdout is not None
    too_long = Timer(TIMEOUT_S, server.kill)
    too_long.start()
    print(json.dumps({**order, "words": _words(folder, model, flags)}), file=server.stdin, flush=True)
    code = server.stdout.readline()
    too_long.cancel()
    return Run(folder, int(code), log.read_text())


@cache
def _ranks() -> subprocess.Popen[str]:
    """The process that forks ranks: it ends with this one, which holds its input."""
    argv = [sys.executable, "-m", "tests.exercise_3.forked_ranks"]
    return subprocess.Popen(
        argv, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def completed(run: Run) -> Run:
    """`run`; an assertion fails where it did not end well."""
    assert run.exit_code == 0, run.output[-3000:]
    return run
