"""Computation and communication on every rank: each alone, then both at once. Measures; `overlap_answer` judges.

As in a training, all-reduces are asynchronous: NCCL runs them on a stream of its own, gloo in threads of its own.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from . import write_json
from .measure import ITEM_BYTES, agree_max, cuda_event, gather
from .overlap_answer import TIMES
from .probes import MIB, Probe, about, gemm, gemm_flop, processes, synchronize

# The usual size of a DDP bucket; on a CPU a message that takes as long there as a bucket does on a network.
MESSAGE_BYTES = {"cpu": 4 * MIB, "cuda": 25 * MIB}
SPAN_S = 0.06  # of each alone: many kernels and messages, so that the start does not count
TRIED_PRODUCTS = 8
REPETITIONS = 15
WARM_UP = 3


@dataclass(frozen=True)
class OverlapSpan:
    """Seconds from the common start to the end of computation and to that of communication; 0 for what was not run."""

    compute_s: float
    communication_s: float


@dataclass(frozen=True)
class OverlapWork:
    """What one rank runs: matrix products, and messages to all ranks."""

    product: Probe
    products: int
    messages: tuple[torch.Tensor, ...]
    device: torch.device


def run(options: Namespace) -> int:
    """Returns 0; a single process leaves the reason why nothing was measured."""
    file: Path = options.run_dir / "comm" / "overlap.json"
    if int(os.environ["WORLD_SIZE"]) == 1:
        reason = "communication needs two processes or more, and this run has one (-g 2 starts two)"
        write_json(file, {"schema": 1, "reason": reason})
        return 0
    with processes(options) as device:
        facts = about(device)
        work = _calibrated(device)
        found = _measured(work)
        if dist.get_rank() == 0:
            sizes = {
                "products": work.products,
                "flop_per_product": gemm_flop(device),
                "messages": len(work.messages),
                "message_bytes": MESSAGE_BYTES[device.type],
            }
            write_json(file, {"schema": 1, **facts, **sizes, "ms": found})
    return 0


def _calibrated(device: torch.device) -> OverlapWork:
    """As many messages as take `SPAN_S`, and as many matrix products as take as long as these."""
    product, message = gemm(device), torch.zeros(MESSAGE_BYTES[device.type] // ITEM_BYTES, device=device)
    one = OverlapWork(product, TRIED_PRODUCTS, (message,), device)
    messages = max(1, round(SPAN_S / _usual(one, communicate=True).communication_s))
    several = OverlapWork(product, TRIED_PRODUCTS, tuple(message.clone() for _ in range(messages)), device)
    per_product_s = _usual(several, compute=True).compute_s / TRIED_PRODUCTS
    products = max(1, round(_usual(several, communicate=True).communication_s / per_product_s))
    return OverlapWork(product, products, several.messages, device)


def _usual(work: OverlapWork, compute: bool = False, communicate: bool = False) -> OverlapSpan:
    """The median of a few runs, after the first ones."""
    spans = [_run(work, compute, communicate) for _ in range(2 * WARM_UP)][WARM_UP:]
    return OverlapSpan(median(s.compute_s for s in spans), median(s.communication_s for s in spans))


def _measured(work: OverlapWork) -> dict[str, list[float]]:
    """Milliseconds of each repetition, of the slowest rank. The three take turns, so that what disturbs the machine
    for a while disturbs all of them."""
    rows = []
    for _ in range(WARM_UP + REPETITIONS):
        compute = _run(work, compute=True).compute_s
        communication = _run(work, communicate=True).communication_s
        both = _run(work, compute=True, communicate=True)
        together = max(both.compute_s, both.communication_s)
        rows.append((compute, communication, together, both.compute_s, both.communication_s))
    columns = zip(*rows[WARM_UP:], strict=True)
    return {name: [s * 1e3 for s in column] for name, column in zip(TIMES, columns, strict=True)}


def _run(work: OverlapWork, compute: bool = False, communicate: bool = False) -> OverlapSpan:
    """Start the messages, then the matrix products, and wait for both; each time is the slowest rank's."""
    agree_max(0.0, work.device)  # all ranks begin together
    synchronize(work.device)
    mine = (_run_on_gpu if work.device.type == "cuda" else _run_on_cpu)(work, compute, communicate)
    slowest = gather([mine.compute_s, mine.communication_s], work.device).max(axis=0)
    return OverlapSpan(float(slowest[0]), float(slowest[1]))


def _run_on_cpu(work: OverlapWork, compute: bool, communicate: bool) -> OverlapSpan:
    begin = time.perf_counter()
    ended = [begin]
    requests = _start(work) if communicate else []

    def wait_for_all() -> None:
        for request in requests:
            request.wait()
        ended[0] = time.perf_counter()

    waiting = Thread(target=wait_for_all)  # the end is seen while the main thread still computes
    if communicate:
        waiting.start()
    computed = begin
    if compute:
        _compute(work)
        computed = time.perf_counter()
    if communicate:
        waiting.join()
    return OverlapSpan(computed - begin, ended[0] - begin)


def _run_on_gpu(work: OverlapWork, compute: bool, communicate: bool) -> OverlapSpan:
    begin, computed, ended = cuda_event(), cuda_event(), cuda_event()
    begin.record()
    requests = _start(work) if communicate else []
    if compute:
        _compute(work)
    computed.record()
    # A stream that only waits for the messages sees their end while the usual stream still computes.
    waiting = torch.cuda.Stream(work.device)  # type: ignore[no-untyped-call]
    waiting.wait_event(begin)
    with torch.cuda.stream(waiting):
        for request in requests:
            request.wait()
        ended.record()
    synchronize(work.device)
    spans = begin.elapsed_time(computed) / 1e3, begin.elapsed_time(ended) / 1e3
    return OverlapSpan(spans[0] if compute else 0.0, spans[1] if communicate else 0.0)


def _start(work: OverlapWork) -> list[Any]:
    return [dist.all_reduce(message, async_op=True) for message in work.messages]


def _compute(work: OverlapWork) -> None:
    for _ in range(work.products):
        work.product.work()
