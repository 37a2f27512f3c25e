"""The six collectives: their buffers, calls, correct results and bounds, and how long they take. Knows no file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.common.model.alpha_beta import AlphaBeta, bus_factor, fit_alpha_beta
from harness.observe.ranges import annotate

ITEM_BYTES = 4  # float32, nccl-tests' default
# Small whole numbers, so that sums over any realistic number of ranks are exact in float32.
PATTERN = 251

# torch 2.13 renamed these two functions; older versions in the containers have only the old names.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
ITERATIONS, MIN_ITERATIONS = 20, 3  # the median counts
WARM_UP = 5
LAUNCH_CYCLES = 1_000_000  # of a GPU, at 2 GHz half a millisecond: ten times what launching one call takes


@dataclass
class MessageBuffers:
    """A prepared message. For a collective in place, `output is work`; `source` refills it before each call."""

    source: torch.Tensor
    work: torch.Tensor
    output: torch.Tensor
    expected: Callable[[], torch.Tensor]

    def reset(self) -> None:
        if self.output is self.work:
            self.work.copy_(self.source)

    def correct(self) -> bool:
        """Whether the last call gave exactly the expected output."""
        return bool(torch.equal(self.output, self.expected()))


@dataclass(frozen=True)
class RingMember:
    """This process in one process group: its rank there, and the ring's neighbours as global ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int
    previous: int
    next: int
    root: int


def rounded_bytes(message_bytes: int, ranks: int) -> int:
    """The size of the message that is sent: whole elements, the same number for each rank, at least one."""
    return max(1, message_bytes // ITEM_BYTES // ranks) * ranks * ITEM_BYTES


def prepare(collective: str, message_bytes: int, member: RingMember, device: torch.device) -> MessageBuffers:
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

    def of_all_ranks(part: torch.Tensor) -> torch.Tensor:
        return (part.view(-1, share) + ranks[:, None]).flatten()

    expected: dict[str, Callable[[], torch.Tensor]] = {
        "all_reduce": lambda: base * n + ranks_sum,
        "broadcast": lambda: base,
        "all_gather": lambda: of_all_ranks(base),
        "reduce_scatter": lambda: mine * n + ranks_sum,
        "all_to_all": lambda: of_all_ranks(mine),
        "send_recv": lambda: base + (rank - 1) % n,
    }
    source = (mine if collective == "all_gather" else base) + rank
    count = share if collective == "reduce_scatter" else total
    output = torch.zeros(count, device=device, dtype=torch.float32)
    work = output if collective in ("all_reduce", "broadcast") else source
    return MessageBuffers(source, work, output, expected[collective])


Call = Callable[[MessageBuffers, RingMember], object]
CALLS: dict[str, Call] = {
    "all_reduce": lambda b, m: dist.all_reduce(b.work, group=m.group),
    "broadcast": lambda b, m: dist.broadcast(b.work, src=m.root, group=m.group),
    "all_gather": lambda b, m: _all_gather(b.output, b.work, group=m.group),
    "reduce_scatter": lambda b, m: _reduce_scatter(b.output, b.work, group=m.group),
    "all_to_all": lambda b, m: dist.all_to_all_single(b.output, b.work, group=m.group),
    "send_recv": lambda b, m: send_and_receive((b.work, m.next), (b.output, m.previous), m.group),
}
"""Runs a collective once. On a GPU it returns when the work is queued, on gloo when the work is done."""


def send_and_receive(
    sent: tuple[torch.Tensor, int], received: tuple[torch.Tensor, int], group: dist.ProcessGroup | None = None
) -> None:
    """A message to one rank and one from another, both at once."""
    both = [dist.P2POp(dist.isend, *sent, group), dist.P2POp(dist.irecv, *received, group)]
    for request in dist.batch_isend_irecv(both):
        request.wait()


@dataclass(frozen=True)
class LinkRates:
    """Nominal rates of one GPU in one direction: to the other GPUs of its node, and its share of the network."""

    intra_gbps: float | None
    inter_gbps: float | None
    gpus_per_node: int


def bus_bound(collective: str, scope: str, ranks: int, links: LinkRates) -> float | None:
    """The largest bus bandwidth in Gb/s that the links allow in groups of `ranks` ranks; None where it is not known.

    Over several nodes with several GPUs each (`world`), NCCL's rings enter and leave a node through all of its
    network cards, so a ring's bandwidth is that of the slower of one GPU's link and the whole node's network. In an
    all-to-all each GPU sends a part of its message to its node, and the rest through its own share of the network. In
    a send/recv one pair per node crosses the network, and the backend chooses through how many cards.
    """
    if scope != "world":
        return links.intra_gbps if scope == "intra" else links.inter_gbps
    if collective == "send_recv":
        return None
    here = links.gpus_per_node
    if collective == "all_to_all":
        inside, across = (ranks - 1) / max(1, here - 1), (ranks - 1) / (ranks - here)
    else:
        inside, across = 1.0, float(here)
    limits = [(links.intra_gbps, inside), (links.inter_gbps, across)]
    return min((rate * factor for rate, factor in limits if rate), default=None)


@dataclass(frozen=True)
class Settings:
    """What to measure. `budget_ns` is for all measurements together."""

    sizes: tuple[int, ...]
    device: torch.device
    budget_ns: int


@dataclass(frozen=True)
class Scope:
    """Disjoint groups of ranks that run the same collective at the same time, and this process's place."""

    name: str
    groups: dict[str, list[int]]
    member: RingMember

    @property
    def ranks(self) -> int:
        """Ranks per group (the largest, if nodes differ)."""
        return max(len(ranks) for ranks in self.groups.values())


@dataclass(frozen=True)
class SizeResult:
    """One message size. `time_ns`: median over iterations of the slowest rank of the slowest group."""

    message_bytes: int
    iterations: int
    time_ns: float
    min_ns: float
    algbw_gbytes_per_s: float
    busbw_gbytes_per_s: float
    correct: bool


@dataclass
class CollectiveResult:
    """One collective in one scope. `reason`: why points are missing, else None."""

    collective: str
    scope: str
    ranks: int
    groups: int
    points: list[SizeResult] = field(default_factory=list)
    fit: AlphaBeta | None = None
    reason: str | None = None


def make_scopes(node: int, local_rank: int) -> list[Scope]:
    """intra (ranks of one node), inter (same local rank over nodes) and world, as far as they differ.

    All ranks call it: torch.distributed requires that every rank creates every group.
    """
    places: list[tuple[int, int]] = [(0, 0)] * dist.get_world_size()
    dist.all_gather_object(places, (node, local_rank))
    return [_scope(name, groups) for name, groups in scope_groups(places).items()]


def scope_groups(rank_places: Sequence[tuple[int, int]]) -> dict[str, dict[str, list[int]]]:
    """Scope → label → global ranks, from each rank's (node, local rank); no scope with a group of one."""
    nodes = sorted({place[0] for place in rank_places})
    lanes = sorted({place[1] for place in rank_places})
    intra = {f"node {n}": [r for r, place in enumerate(rank_places) if place[0] == n] for n in nodes}
    inter = {f"local rank {k}": [r for r, place in enumerate(rank_places) if place[1] == k] for k in lanes}
    wanted = {"intra": intra, "inter": inter}
    if len(nodes) > 1 and len(lanes) > 1:
        wanted["world"] = {"world": list(range(len(rank_places)))}
    return {name: groups for name, groups in wanted.items() if min(map(len, groups.values())) > 1}


def _scope(name: str, groups: dict[str, list[int]]) -> Scope:
    made = [(dist.new_group(ranks), ranks) for ranks in groups.values()]
    group, ranks = next(each for each in made if dist.get_rank() in each[1])
    mine, size = ranks.index(dist.get_rank()), len(ranks)
    return Scope(
        name, groups, RingMember(group, mine, size, ranks[(mine - 1) % size], ranks[(mine + 1) % size], ranks[0])
    )


def measure(collectives: Sequence[str], scopes: Sequence[Scope], settings: Settings) -> Iterator[CollectiveResult]:
    """One CollectiveResult per collective and scope, as each is done. All ranks run it in step and get the same."""
    todo = [(scope, collective) for scope in scopes for collective in collectives]
    end_ns = time.monotonic_ns() + settings.budget_ns
    for done, (scope, collective) in enumerate(todo):
        # The remaining measurements share the time that is left.
        share_ns = agree_max(max(0, end_ns - time.monotonic_ns()) / (len(todo) - done), settings.device)
        yield _measure_one(collective, scope, settings, share_ns)


def _measure_one(collective: str, scope: Scope, settings: Settings, share_ns: float) -> CollectiveResult:
    device = settings.device
    result = CollectiveResult(collective, scope.name, scope.ranks, len(scope.groups))
    result.reason = _unsupported(collective, scope, device)
    if result.reason is not None:
        return result
    begin_ns = time.monotonic_ns()
    for size in settings.sizes:
        left_ns = share_ns - agree_max(time.monotonic_ns() - begin_ns, device)
        last = result.points[-1] if result.points else None
        # The estimate: a larger message takes longer in proportion to its bytes.
        if last and last.time_ns * max(1.0, size / last.message_bytes) * (MIN_ITERATIONS + 2) > left_ns:
            result.reason = f"stopped before {size} bytes: the time budget is used up"
            break
        with annotate(f"{collective} {scope.name} {size} bytes"):
            result.points.append(_measure_size(collective, size, scope, settings, left_ns))
    measured = result.points
    result.fit = fit_alpha_beta([point.message_bytes for point in measured], [point.time_ns for point in measured])
    return result


def _unsupported(collective: str, scope: Scope, device: torch.device) -> str | None:
    """Why this backend cannot run the collective, found by one try: a list here would become outdated."""
    try:
        CALLS[collective](prepare(collective, 1024, scope.member, device), scope.member)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        backend = dist.get_backend(scope.member.group)
        return f"not available on {backend}: {str(error).splitlines()[0]}"
    return None


def _measure_size(collective: str, size: int, scope: Scope, settings: Settings, left_ns: float) -> SizeResult:
    member, device = scope.member, settings.device
    buffers = prepare(collective, size, member, device)
    first_ns = agree_max(_time_calls(collective, buffers, member, 1, device)[0], device)
    correct = agree_max(0.0 if buffers.correct() else 1.0, device) == 0.0
    affordable = int(left_ns / max(first_ns, 1.0))
    iterations = max(MIN_ITERATIONS, min(ITERATIONS, affordable))
    _time_calls(collective, buffers, member, min(WARM_UP, max(1, iterations // 2)), device)
    times = gather(_time_calls(collective, buffers, member, iterations, device), device)
    correct = correct and agree_max(0.0 if buffers.correct() else 1.0, device) == 0.0
    slowest = {label: times[ranks].max(axis=0) for label, ranks in scope.groups.items()}
    by_group = {label: float(np.median(values)) for label, values in slowest.items()}
    worst = max(by_group, key=by_group.__getitem__)
    ranks = len(scope.groups[worst])
    message_bytes = rounded_bytes(size, ranks)
    algbw = message_bytes / by_group[worst]  # bytes per ns are GB/s
    return SizeResult(
        message_bytes=message_bytes,
        iterations=iterations,
        time_ns=by_group[worst],
        min_ns=float(slowest[worst].min()),
        algbw_gbytes_per_s=algbw,
        busbw_gbytes_per_s=algbw * bus_factor(collective, ranks),
        correct=correct,
    )


def _time_calls(
    collective: str, buffers: MessageBuffers, member: RingMember, count: int, device: torch.device
) -> list[float]:
    """Nanoseconds of each of `count` calls on this rank, without the time to refill the input."""
    call = CALLS[collective]
    if device.type == "cuda":
        return _time_calls_cuda(call, buffers, member, count)
    times = []
    for _ in range(count):
        buffers.reset()
        dist.barrier(group=member.group)
        begin = time.perf_counter_ns()
        call(buffers, member)
        times.append(float(time.perf_counter_ns() - begin))
    return times


def _time_calls_cuda(call: Call, buffers: MessageBuffers, member: RingMember, count: int) -> list[float]:
    begins = [cuda_event() for _ in range(count)]
    ends = [cuda_event() for _ in range(count)]
    # On an idle stream the time between two events would be what Python takes to launch the call. So the device is
    # kept busy until every call is queued, and then runs one right after the other.
    torch.cuda._sleep(count * LAUNCH_CYCLES)  # type: ignore[no-untyped-call]
    for begin, end in zip(begins, ends, strict=True):
        buffers.reset()
        begin.record()
        call(buffers, member)
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) * 1e6 for begin, end in zip(begins, ends, strict=True)]


def cuda_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def gather(values: list[float], device: torch.device) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Rows of all ranks, [world, len(values)]."""
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack(rows).cpu().numpy()


def agree_max(value: float, device: torch.device) -> float:
    """The largest of all ranks' values, so that every rank takes the same decision."""
    return float(gather([value], device).max())
