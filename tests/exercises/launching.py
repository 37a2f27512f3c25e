"""Starts training scripts with the launchers that the harness uses, and reads what they leave: metrics and traces."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from threading import Timer
from typing import Any

from tests.waiting import limit_s, wait_until

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300  # of a training, on an idle machine
UNHURRIED = Path(__file__).with_name("unhurried_train.py")


@dataclass(frozen=True)
class Finished:
    """A training that has ended."""

    code: int
    stderr: str
    folder: Path

    def metrics(self, rank: int) -> list[dict[str, Any]]:
        """The lines of one rank."""
        text = (self.folder / "metrics" / f"rank{rank}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def steps(self, rank: int) -> list[dict[str, Any]]:
        """The step lines of one rank."""
        return [line for line in self.metrics(rank) if line["event"] == "step"]

    def mean_losses(self) -> list[float]:
        """Per step, the mean over ranks of the loss."""
        ranks = range(self.metrics(0)[0]["world_size"])
        columns = [[line["loss"] for line in self.steps(rank)] for rank in ranks]
        return [sum(losses) / len(losses) for losses in zip(*columns, strict=True)]


def start(
    script: str, folder: Path, *options: str, model: str = "tiny-mistral", processes: int = 2, config: str = "ddp"
) -> subprocess.Popen[str]:
    """Start a script of `exercises` under accelerate on this machine's CPU, each rank as a new interpreter."""
    arguments = _accelerate_arguments(script, folder, options, model=model, processes=processes, config=config)
    return subprocess.Popen(
        [Path(sys.executable).with_name("accelerate"), "launch", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=folder.parent,
    )


def train(
    script: str, folder: Path, *options: str, model: str = "tiny-mistral", processes: int = 2, config: str = "ddp"
) -> Finished:
    """As `start`, with forked ranks, and wait for the end."""
    arguments = _accelerate_arguments(script, folder, options, model=model, processes=processes, config=config)
    code, log = launch_forked("accelerate", arguments, folder)
    return Finished(code, log, folder)


def _accelerate_arguments(
    script: str, folder: Path, options: Iterable[str], *, model: str, processes: int, config: str
) -> list[str]:
    return [
        *("--config_file", str(ROOT / f"configs/accelerate/{config}.yaml")),
        *("--num_processes", str(processes), "--main_process_port", str(free_port())),
        *(str(ROOT / "exercises" / script), "--model", str(ROOT / f"configs/models/{model}.yaml")),
        *("--device", "cpu", "--run-dir", str(folder), *options),
    ]


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


def wait_for(condition: Callable[[], bool], what: str, started: subprocess.Popen[str]) -> None:
    """Wait until `condition` holds; fails with what the process said, also where that ends before."""

    def holds() -> bool:
        ended = started.poll() is not None  # asked first: what it did before its end counts
        held = condition()
        assert held or not ended, f"it ended before {what}\n{_said(started)}"
        return held

    wait_until(holds, what, lambda: _said(started), TIMEOUT_S)


def _said(started: subprocess.Popen[str]) -> str:
    """What is in the pipes of a process, which may be running."""
    said = ""
    for pipe in (started.stdout, started.stderr):
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            with suppress(BlockingIOError):
                said += os.read(pipe.fileno(), 1 << 20).decode("utf-8", "replace")
    return said


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
