"""Trainings as programs: what each rank launches, computes and waits for, with the faults as further fields.

A training without faults is healthy; a fault is `replace(training, …)`, so the same program without it is at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .program import MS, US

Everyone = None  # of ranks


@dataclass(frozen=True)
class HostWork:
    """Python on the host that launches nothing. place: data, forward, backward, optimizer or between; every: in each
    n-th step; function: its name in a recorded stack."""

    place: str
    ns: int
    ranks: tuple[int, ...] | None = Everyone
    every: int = 1
    function: str = "train.py(88): compute_statistics"


class Cold(NamedTuple):
    """What the first pass of a process uses for the first time: calls of the library, each with its time, in its first
    operators; and how much longer the first launch of each kernel takes."""

    calls: tuple[tuple[str, int], ...] = ()
    launch_ns: int = 0


@dataclass(frozen=True)
class Start:
    """Nanoseconds of each part before the first step, and the bytes of the model. cold: the first pass."""

    imports_ns: int = 0
    context_ns: int = 0
    meeting_ns: int = 0
    model_ns: int = 0
    model_bytes: int = 0
    gb_per_s: float = 3.0
    pageable: bool = True
    compile_ns: int = 0
    capture_ns: int = 0
    cold: Cold = field(default_factory=Cold)


@dataclass(frozen=True)
class Training:
    """One job. Times are of one kernel, one layer or one call in nanoseconds, bytes of one layer; by rank where a
    mapping says so. kind: alone, ddp, sharded or pipeline."""

    kind: str = "ddp"
    ranks: int = 2
    steps: int = 8
    layers: int = 8
    kernel_ns: int = 150 * US  # of a matrix product; other kernels take an eighth
    python_ns: int = 6 * US  # before each launch
    launch_ns: int = 5 * US
    layer_bytes: int = 24 << 20
    gb_per_s: float = 100.0
    message_ns: int = 25 * US  # latency
    bucket_layers: int = 2
    optimizer_kernels: int = 6
    micro_batches: int = 1
    precision: str = "bf16"
    load_ns: int = 2 * MS
    workers: int = 4
    slow_workers: int = 1  # of a rank with slow loads; 0: it loads itself
    fetch_ns: int = 60 * US  # to take a batch that is there
    batch_bytes: int = 1 << 20
    work: float = 1.0  # samples of a micro-batch, which all but the optimizer's kernels and the messages grow with
    item_every: int = 0
    seed: int = 0
    stacks: bool = True  # Python functions are recorded
    ranges: bool = True  # the program marks its phases
    stages: int = 1  # of a pipeline; ranks are its stages, times data parallelism
    # faults
    host_work: tuple[HostWork, ...] = ()
    slow_loads: tuple[tuple[tuple[int, ...] | None, int, int], ...] = ()  # ranks, every, further ns
    sync_layers: bool = False
    blocking_outputs: int = 0  # bytes that each step copies to the host, and waits for
    split: int = 1  # each kernel as so many smaller ones
    allocations_ns: int = 0  # of cudaMalloc and cudaFree in each layer
    first_use_ns: int = 0  # of each kernel's first launch, in the first step
    collect_ns: int = 0
    collect_every: int = 1
    slower: dict[int, float] = field(default_factory=dict)  # all kernels of a rank
    more_work: dict[int, float] = field(default_factory=dict)  # forward and backward of a rank
    tiny_buckets: int = 0  # messages for each layer's gradients
    extra_gather: int = 0  # bytes that each step gathers besides
    logits_bytes: int = 0  # gathered by all ranks at the end of each forward pass, which waits for it
    one_stream: bool = False
    reduce_each: bool = False
    pageable_bytes: int = 0
    offload_gb_per_s: float = 0.0
    stage_layers: dict[int, int] = field(default_factory=dict)
    checkpoint_ns: int = 0
    checkpoint_every: int = 4
    checkpoint_bytes: int = 64 << 20
    evaluate_every: int = 0  # on rank 0
    evaluate_all: bool = False  # on all ranks, with batches of their own
    layout_ns: int = 0  # of a conversion before each product and one after it
    contended: tuple[int, ...] = ()
    start: Start | None = None  # what comes before the first step, and a cold first pass
    around: str = ""  # a range around the whole program
    marked: bool = True  # the steps
    # changes that a what-if promises
    update_every: int = 1  # gradients are reduced, and parameters updated, in each n-th step
    apart: bool = False  # stages do not wait for each other

    def has_slow_loads(self, rank: int) -> bool:
        """Whether a rank's batches are slow."""
        return any(ranks is None or rank in ranks for ranks, _, _ in self.slow_loads)

    def batch_ns(self, rank: int, batch: int) -> int:
        """How long a loader works on a batch of a rank."""
        ns = round(self.work * self.load_ns * self.noise(rank, batch, 7, 0.1))
        for ranks, every, more in self.slow_loads:
            if (ranks is None or rank in ranks) and batch % every == every - 1:
                ns += round(self.work * more)
        return ns

    def noise(self, rank: int, step: int, number: int, spread: float) -> float:
        """A factor around 1, the same for the same place of the program, whatever else is changed."""
        mixed = (self.seed * 0x9E3779B1 + rank * 0x85EBCA77 + step * 0xC2B2AE3D + number * 0x27D4EB2F) & 0xFFFFFFFF
        mixed ^= mixed >> 15
        mixed = mixed * 0x2C1B3C6D & 0xFFFFFFFF
        mixed ^= mixed >> 12
        mixed = mixed * 0x297A2D39 & 0xFFFFFFFF
        mixed ^= mixed >> 15
        return 1 + spread * (mixed / 0xFFFFFFFF * 2 - 1)
