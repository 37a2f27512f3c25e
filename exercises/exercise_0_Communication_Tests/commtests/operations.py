"""The six collectives: their buffers, their calls and their correct results. Knows torch; knows no clocks or files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

ITEM_BYTES = 4  # float32, nccl-tests' default
# Small whole numbers, so that sums over any realistic number of ranks are exact in float32.
PATTERN = 251

# torch 2.13 renamed these two functions; older versions in the containers have only the old names.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass
class Buffers:
    """A prepared message. For a collective in place, `output is work`; `source` refills it before each call."""

    source: torch.Tensor
    work: torch.Tensor
    output: torch.Tensor
    expected: Callable[[], torch.Tensor]

    def reset(self) -> None:
        """Restore the input for the next call."""
        if self.output is self.work:
            self.work.copy_(self.source)

    def correct(self) -> bool:
        """Whether the last call gave exactly the expected output."""
        return bool(torch.equal(self.output, self.expected()))


@dataclass(frozen=True)
class Member:
    """This process in one process group: its rank there, and the ring's neighbours as global ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int
    previous: int
    next: int
    root: int


def member_of(group: dist.ProcessGroup, ranks: list[int]) -> Member:
    """This process's place among `ranks` (global ranks, in group order)."""
    mine = ranks.index(dist.get_rank())
    size = len(ranks)
    return Member(group, mine, size, ranks[(mine - 1) % size], ranks[(mine + 1) % size], ranks[0])


def rounded_bytes(message_bytes: int, ranks: int) -> int:
    """The size of the message that is sent: whole elements, the same number for each rank, at least one."""
    return max(1, message_bytes // ITEM_BYTES // ranks) * ranks * ITEM_BYTES


def prepare(collective: str, message_bytes: int, member: Member, device: torch.device) -> Buffers:
    """Buffers of one message of `rounded_bytes(message_bytes, …)`.

    The message is the larger of input and output of a rank, as nccl-tests counts it.
    """
    n, rank = member.size, member.rank
    total = rounded_bytes(message_bytes, n) // ITEM_BYTES
    share = total // n
    base = torch.arange(total, device=device, dtype=torch.float32).remainder_(PATTERN)
    mine = base[rank * share : (rank + 1) * share]
    ranks = torch.arange(n, device=device, dtype=torch.float32)
    ranks_sum = n * (n - 1) / 2

    def empty(count: int) -> torch.Tensor:
        return torch.zeros(count, device=device, dtype=torch.float32)

    def of_all_ranks(part: torch.Tensor) -> torch.Tensor:
        return (part.view(-1, share) + ranks[:, None]).flatten()

    if collective in {"all_reduce", "broadcast"}:
        work = empty(total)
        expected = (lambda: base * n + ranks_sum) if collective == "all_reduce" else (lambda: base)
        return Buffers(base + rank, work, work, expected)
    if collective == "all_gather":
        source = mine + rank
        return Buffers(source, source, empty(total), lambda: of_all_ranks(base))
    source = base + rank
    if collective == "reduce_scatter":
        return Buffers(source, source, empty(share), lambda: mine * n + ranks_sum)
    if collective == "all_to_all":
        return Buffers(source, source, empty(total), lambda: of_all_ranks(mine))
    if collective == "send_recv":
        return Buffers(source, source, empty(total), lambda: base + (rank - 1) % n)
    raise ValueError(f"unknown collective {collective!r}")


def call(collective: str, buffers: Buffers, member: Member) -> None:
    """Run the collective once. On a GPU it returns when the work is queued, on gloo when the work is done."""
    group = member.group
    if collective == "all_reduce":
        dist.all_reduce(buffers.work, group=group)
    elif collective == "broadcast":
        dist.broadcast(buffers.work, src=member.root, group=group)
    elif collective == "all_gather":
        _all_gather(buffers.output, buffers.work, group=group)
    elif collective == "reduce_scatter":
        _reduce_scatter(buffers.output, buffers.work, group=group)
    elif collective == "all_to_all":
        dist.all_to_all_single(buffers.output, buffers.work, group=group)
    elif collective == "send_recv":
        ring = [
            dist.P2POp(dist.isend, buffers.work, member.next, group),
            dist.P2POp(dist.irecv, buffers.output, member.previous, group),
        ]
        for request in dist.batch_isend_irecv(ring):
            request.wait()
    else:
        raise ValueError(f"unknown collective {collective!r}")
