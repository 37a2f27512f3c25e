"""Computation and communication of one rank, each alone, then both at once. Reads times; `answer` compares them.

As in a training, all-reduces are asynchronous: NCCL runs them on a stream of its own, gloo in threads of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .answer import PARTS
from .measure import ITEM_BYTES, agree_max, cuda_event
from .probes import MIB, Probe, gemm, synchronize
from .verdict import number

# The usual size of a DDP bucket; on a CPU a message that takes as long there as a bucket does on a network.
MESSAGE_BYTES = {"cpu": 4 * MIB, "cuda": 25 * MIB}
SPAN_S = 0.06  # of each alone: many kernels and messages, so that the start does not count
TRIED_PRODUCTS = 8
WARM_UP = 3


class OverlapSpan(NamedTuple):
    """Seconds from the common start to the end of computation and to that of communication."""

    compute_s: float
    communication_s: float


@dataclass(frozen=True)
class OverlapWork:
    """What each rank runs: matrix products, and messages to all ranks."""

    product: Probe
    products: int
    messages: Sequence[torch.Tensor]
    device: torch.device

    def text(self) -> str:
        """As `40 matrix products of 0.268 GFLOP; 20 all-reduces of 4 MiB`."""
        flop = f"{number(self.product.per_call)} {self.product.unit.removesuffix('/s')}"
        size = f"{MESSAGE_BYTES[self.device.type] / MIB:.3g} MiB"
        return f"{self.products} matrix products of {flop}; {len(self.messages)} all-reduces of {size}"

    def seconds(self) -> Mapping[str, float]:
        """The seconds of each of `PARTS` on this rank."""
        compute, communication = replace(self, messages=()).run(), replace(self, products=0).run()
        both = self.run()
        alone = compute.compute_s, communication.communication_s
        return dict(zip(PARTS, (*alone, max(both), *both), strict=True))

    def usual_s(self) -> float:
        """The median of a few runs after the first ones, of the slowest rank."""
        spans = [max(self.run()) for _ in range(2 * WARM_UP)]
        return agree_max(median(spans[WARM_UP:]), self.device)

    def run(self) -> OverlapSpan:
        """Start the messages, then the matrix products, and wait for both. All ranks begin together."""
        agree_max(0.0, self.device)
        synchronize(self.device)
        return _run_on_gpu(self) if self.device.type == "cuda" else _run_on_cpu(self)


def calibrated(device: torch.device) -> OverlapWork:
    """As many messages as take `SPAN_S`, and as many matrix products as take as long as these."""
    product, message = gemm(device), torch.zeros(MESSAGE_BYTES[device.type] // ITEM_BYTES, device=device)
    count = max(1, round(SPAN_S / OverlapWork(product, 0, [message], device).usual_s()))
    messages = [message.clone() for _ in range(count)]
    per_product_s = OverlapWork(product, TRIED_PRODUCTS, (), device).usual_s() / TRIED_PRODUCTS
    products = max(1, round(OverlapWork(product, 0, messages, device).usual_s() / per_product_s))
    return OverlapWork(product, products, messages, device)


def _run_on_cpu(work: OverlapWork) -> OverlapSpan:
    begin = time.perf_counter()
    ended = [begin]
    requests = _start(work)

    def wait_for_all() -> None:
        for request in requests:
            request.wait()
        ended[0] = time.perf_counter()

    waiting = Thread(target=wait_for_all)  # the end is seen while the main thread still computes
    if requests:
        waiting.start()
    _compute(work)
    computed = time.perf_counter()
    if requests:
        waiting.join()
    return OverlapSpan(computed - begin, ended[0] - begin)


def _run_on_gpu(work: OverlapWork) -> OverlapSpan:
    begin, computed, ended = cuda_event(), cuda_event(), cuda_event()
    begin.record()
    requests = _start(work)
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
    return OverlapSpan(begin.elapsed_time(computed) / 1e3, begin.elapsed_time(ended) / 1e3)


def _start(work: OverlapWork) -> list[Any]:
    return [dist.all_reduce(message, async_op=True) for message in work.messages]


def _compute(work: OverlapWork) -> None:
    for _ in range(work.products):
        work.product.work()
