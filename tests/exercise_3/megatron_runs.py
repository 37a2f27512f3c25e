"""Starts exercise 3's training as the harness does, on this machine's CPU, and reads what it left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.exercises.launching import ROOT, TIMEOUT_S, environment, free_port, launch_forked, trace_events
from tests.waiting import limit_s

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
    arguments = _arguments(folder, flags, processes=processes, model=model)
    return [str(Path(sys.executable).with_name("torchrun")), *arguments]


def _arguments(folder: Path, flags: Iterable[object], *, processes: int, model: str) -> list[str]:
    machine = ("--nnodes", 1, "--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", free_port())
    where = ("--run-dir", folder, "--model", MODELS / f"{model}.yaml", "--device", "cpu")
    return list(map(str, (*machine, "--nproc-per-node", processes, SCRIPT, *where, *flags)))


def train_launched(folder: Path, *flags: object) -> Run:
    """Train to the end, each rank as a new interpreter."""
    done = subprocess.run(
        command(folder, *flags), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=limit_s(TIMEOUT_S), check=False,
    )  # fmt: skip
    return Run(folder, done.returncode, done.stdout)


def train(folder: Path, *flags: object, processes: int = 2, model: str = "tiny-mistral") -> Run:
    """Train to the end with forked ranks."""
    arguments = _arguments(folder, flags, processes=processes, model=model)
    return Run(folder, *launch_forked("torchrun", arguments, folder))


def completed(run: Run) -> Run:
    """`run`; an assertion fails where it did not end well."""
    assert run.exit_code == 0, run.output[-3000:]
    return run
