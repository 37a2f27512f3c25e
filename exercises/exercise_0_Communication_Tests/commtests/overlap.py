"""Computation and communication of one rank, each alone, then both at once. Reads times; `answer` compares them.

As in a training, all-reduces are asynchronous: NCCL runs them on a stream of its own, gloo in threads of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.distributed as dist

from .answer import PARTS
from .measure import ITEM_BYTES, agree_max
from .probes import MIB, Probe, gemm, time_calls
from .verdict import number

# The usual size of a DDP bucket; on a CPU a message that takes as long there as a bucket does on a network.
MESSAGE_BYTES = {"cpu": 4 * MIB, "cuda": 25 * MIB}
SPAN_S = 0.06  # of each alone: many kernels and messages, so that the start does not count
TRIED_PRODUCTS = 8
WARM_UP = 3


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
        parts = replace(self, messages=()), replace(self, products=0), self
        return dict(zip(PARTS, (each.run_s() for each in parts), strict=True))

    def usual_s(self) -> float:
        """The median of a few runs after the first ones, of the slowest rank."""
        times = [self.run_s() for _ in range(2 * WARM_UP)]
        return agree_max(median(times[WARM_UP:]), self.device)

    def run_s(self) -> float:
        """The seconds until the messages and the matrix products are done. All ranks begin together."""
        agree_max(0.0, self.device)
        return time_calls(self._run, 1, self.device)

    def _run(self) -> None:
        requests = [dist.all_reduce(message, async_op=True) for message in self.messages]
        for _ in range(self.products):
            self.product.work()
        for request in requests:
            request.wait()


def calibrated(device: torch.device) -> OverlapWork:
    """As many messages as take `SPAN_S`, and as many matrix products as take as long as these."""
    product, message = gemm(device), torch.zeros(MESSAGE_BYTES[device.type] // ITEM_BYTES, device=device)
    count = max(1, round(SPAN_S / OverlapWork(product, 0, [message], device).usual_s()))
    messages = [message.clone() for _ in range(count)]
    per_product_s = OverlapWork(product, TRIED_PRODUCTS, (), device).usual_s() / TRIED_PRODUCTS
    products = max(1, round(OverlapWork(product, 0, messages, device).usual_s() / per_product_s))
    return OverlapWork(product, products, messages, device)
