"""Starts training scripts with the launchers that the harness uses, and reads what they leave: metrics and traces."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path
from threading import Timer
from typing import Any

from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300  # of a training, on an idle machine
UNHURRIED = Path(__file__).with_name("unhurried_train.py")


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
    log: str

    def lines(self, rank: int = 0) -> list[dict[str, Any]]:
        """The rank's metrics, line by line."""
        text = (self.folder / "metrics" / f"rank{rank}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return [line for line in self.lines(rank) if line["event"] == "step"]

    def losses(self, rank: int = 0) -> list[float]:
        return [step["loss"] for step in self.steps(rank)]

    def mean_losses(self) -> list[float]:
        """Per step, the mean over ranks of the loss."""
        ranks = range(self.lines()[0]["world_size"])
        return [sum(losses) / len(losses) for losses in zip(*map(self.losses, ranks), strict=True)]

    @cached_property
    def _spans(self) -> dict[int, list[Span]]:
        traces = (self.folder / "torch").glob("rank*.json.gz")
        return {rank: _spans(self.folder, rank) for rank in (int(path.name[4:].split(".")[0]) for path in traces)}

    def spans(self, rank: int, word: str = "") -> list[Span]:
        """The rank's ranges that begin with `word`, in order of their start."""
        return [span for span in self._spans[rank] if span.name.startswith(word)]


def _spans(folder: Path, rank: int) -> list[Span]:
    ranges = [event for event in events(folder, rank) if event.get("cat") == "user_annotation"]
    spans = [Span(e["name"], float(e["ts"]), float(e["ts"]) + float(e["dur"]), e["tid"]) for e in ranges]
    return sorted(spans, key=lambda span: span.start)


def completed(run: Run) -> Run:
    """`run`; an assertion fails where it did not end well."""
    assert run.exit_code == 0, run.log[-3000:]
    return run


def train(
    script: str, folder: Path, *options: str, model: str = "tiny-mistral", processes: int = 2, config: str = "ddp"
) -> Run:
    """Train with a script of `exercises` under accelerate on this machine's CPU, with forked ranks, to the end."""
    arguments = [
        *("--config_file", str(ROOT / f"configs/accelerate/{config}.yaml")),
        *("--num_processes", str(processes), "--main_process_port", str(free_port())),
        *(str(ROOT / "exercises" / script), "--model", str(ROOT / f"configs/models/{model}.yaml")),
        *("--device", "cpu", "--run-dir", str(folder), *options),
    ]
    return Run(folder, *launch_forked("accelerate", arguments, folder))


def environment() -> dict[str, str]:
    """What the harness sets for a training on this machine's CPU."""
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **ours, "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}


def launch_forked(launcher: str, arguments: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and log of a launch whose ranks are forked.

    Raises AssertionError: it does not end; with its log.
    """
    log = folder.with_suffix(".log")
    order = {"arguments": arguments, "folder": str(folder.parent), "log": str(log)}
    server = _server(launcher)
    assert server.stdin is not None and server.stdout is not None
    too_long = Timer(limit_s(TIMEOUT_S), server.kill)
    too_long.start()
    print(json.dumps(order), file=server.stdin, flush=True)
    code = server.stdout.readline()
    too_long.cancel()
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    if not code:
        _server.cache_clear()  # the next training gets a new one
    assert code, f"it did not end in {limit_s(TIMEOUT_S):.0f} s\n{text[-3000:]}"
    return int(code), text


@cache
def _server(launcher: str) -> subprocess.Popen[str]:
    """The process that starts launchers: it ends with this one, which holds its input."""
    argv = [sys.executable, "-m", "tests.exercises.forked_ranks", launcher]
    return subprocess.Popen(argv, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def free_port() -> int:
    """A TCP port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Collective:
    """One call of a collective: its kind, how many ranks share the work, and the ranges around it.

    elements: of the larger of input and output.
    """

    kind: str  # all_gather, reduce_scatter, all_reduce, …
    group_size: int | None
    elements: int
    within: frozenset[str]


KINDS = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
    "c10d::allgather_": "all_gather_list",
    "c10d::broadcast_": "broadcast",
}


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """All complete events of a rank's trace."""
    return [event for event in trace_events(folder / "torch" / f"rank{rank}.json.gz") if event.get("ph") == "X"]


def trace_events(path: Path) -> list[dict[str, Any]]:
    """All that a Kineto file holds, which must be whole."""
    return list(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def collectives(folder: Path, rank: int) -> Iterator[Collective]:
    """Every collective in the profiled steps of a rank."""
    found = events(folder, rank)
    ranges = [event for event in found if event.get("cat") == "user_annotation"]
    for event in found:
        if event["name"] in KINDS:
            around = frozenset(r["name"] for r in ranges if _during(event, r))
            yield Collective(KINDS[event["name"]], _group_size(event), max(_sizes(event), default=0), around)


def _during(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    return bool(outer["ts"] <= inner["ts"] <= outer["ts"] + outer["dur"])


def _group_size(event: dict[str, Any]) -> int | None:
    sizes = _sizes(event)[:2]
    single = KINDS[event["name"]] in ("all_gather", "reduce_scatter")
    return max(sizes) // min(sizes) if single and len(sizes) == 2 else None


def _sizes(event: dict[str, Any]) -> list[int]:
    """Elements of each tensor or list of tensors that the call was given."""
    dims = [d for d in event.get("args", {}).get("Input Dims", []) if d]
    return [sum(prod(each) for each in d) if isinstance(d[0], list) else prod(d) for d in dims]
