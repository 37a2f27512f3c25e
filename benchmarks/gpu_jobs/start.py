"""How a simulated job starts: imports, the meeting of its ranks, its model and the copies of it, compiling, a capture,
and what the first pass uses for the first time; and the cases that are made of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from .program import COMPUTE, COPY, MS, US, Begin, Call, Compute, End, Instruction, Launch, Wait, Work
from .training import Training

AROUND = "distributed_training"  # a range around everything, as programs of others have it
_CALLS = ("cudaStreamCreateWithFlags", "cudaEventCreateWithFlags", "cuLibraryLoadData", "cudaFree", "cudaMalloc")
_CONTEXT = "cudaDeviceGetStreamPriorityRange"
_COPIES = 24  # of the model


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


def start_up(t: Training, rank: int) -> Iterator[Instruction]:
    """The instructions of a rank before its first step."""
    start = t.start
    if start is None:
        return
    yield from _python(t, "<frozen importlib._bootstrap>(1165): _find_and_load", start.imports_ns)
    if start.context_ns:
        yield Call(_CONTEXT, start.context_ns)
    if start.meeting_ns:
        yield Begin("range", "init_process_group")
        yield Compute(start.meeting_ns)
        yield End()
    yield from _python(t, "transformers/modeling_utils.py(3000): from_pretrained", start.model_ns)
    yield from _model_copies(start)
    if start.compile_ns:
        yield Begin("torch", "_compile.compile_inner (dynamo_timed)")
        yield Compute(start.compile_ns)
        yield End()
    if start.capture_ns:
        yield Call("cudaStreamBeginCapture", 5 * US)
        yield Compute(start.capture_ns)
        yield Call("cudaStreamEndCapture", 20 * US)


def _python(t: Training, name: str, ns: int) -> Iterator[Instruction]:
    """A Python function that takes so long; its name is there if functions are recorded."""
    if ns:
        yield from [Begin("python", name)] * t.stacks
        yield Compute(ns)
        yield from [End()] * t.stacks


def _model_copies(start: Start) -> Iterator[Instruction]:
    if not start.model_bytes:
        return
    size = start.model_bytes // _COPIES
    memory = "pageable" if start.pageable else "pinned"
    for _ in range(_COPIES):
        make = partial(Work, "Memcpy HtoD", COPY, round(size / start.gb_per_s), "copy", size, "HtoD", memory)
        yield Launch(make, "cudaMemcpyAsync", 5 * US, "aten::copy_", 4 * US, US, blocks=start.pageable)
    yield Wait("cudaStreamSynchronize", COPY)


def cold_pass(t: Training, step: int, layer: int) -> Iterator[Instruction]:
    """What the first operators of the first forward pass call before their kernels."""
    if t.start is None or step or layer or not t.start.cold.calls:
        return
    calls = t.start.cold.calls
    for place, operator in enumerate(("aten::cudnn_convolution", "aten::addmm")):
        yield Begin("operator", operator)
        for name, ns in calls[place::2]:
            yield Compute(30 * US)
            yield Call(name, ns)
        kernel = partial(Work, f"void {operator[6:]}_prepare_kernel<float>(float*)", COMPUTE, 20 * US)
        yield Launch(kernel, "cudaLaunchKernel", 5 * US)
        yield End()


class StartCase(NamedTuple):
    """A job with a start; `without` is the same job without what is to be told. told: first-use, before, or nothing."""

    name: str
    tool: str
    training: Training
    without: Training
    told: str


class StartRequest(NamedTuple):
    """Which job to make. kind: a name in KINDS."""

    seed: int
    kind: str
    number: int

    def case(self) -> StartCase:
        """The job."""
        rng = random.Random(f"{self.seed} {self.kind} {self.number}")
        t = Training(
            kind=rng.choice(("alone", "ddp", "sharded")), layers=rng.choice((6, 8)), steps=rng.choice((6, 9)),
            kernel_ns=rng.choice((10, 150)) * US, python_ns=rng.choice((8, 14)) * US, stacks=rng.random() < 0.5,
            item_every=rng.choice((0, 1)), seed=rng.randrange(1 << 20), load_ns=MS // 5, layer_bytes=4 << 20,
        )  # fmt: skip
        t = replace(t, ranks=1 if t.kind == "alone" else rng.choice((2, 4)))
        tool = ("kineto", "nsys")[self.number % 2]
        return KINDS[self.kind](f"{self.kind}-{self.number}", tool, t, rng)


def _whole_ns(t: Training) -> int:
    return t.steps * t.run_step_ns()


def _parts(t: Training, rng: random.Random) -> Start:
    whole = _whole_ns(t)

    def some() -> int:
        return round(whole * rng.uniform(0.1, 0.6)) * rng.choice((0, 1, 1))

    return Start(
        imports_ns=some(), context_ns=some(), meeting_ns=some() if t.ranks > 1 else 0, model_ns=some(),
        model_bytes=round(3 * whole * rng.uniform(0.2, 0.8)), pageable=rng.random() < 0.7, compile_ns=some(),
        capture_ns=some() // 4,
    )  # fmt: skip


def _before(name: str, tool: str, t: Training, rng: random.Random, *, marked: bool) -> StartCase:
    without = replace(t, marked=marked, around=AROUND)
    return StartCase(name, tool, replace(without, start=_parts(t, rng)), without, "before")


def _cold(name: str, tool: str, t: Training, rng: random.Random, *, marked: bool) -> StartCase:
    """The first pass takes several times as long as the others together, or half of them."""
    whole = round(_whole_ns(t) * rng.uniform(0.3, 3))
    names = rng.sample(_CALLS, rng.choice((2, 3, 5)))
    weights = [rng.uniform(0.2, 1) for _ in names]
    calls = tuple((n, max(round(whole * w / sum(weights)), 2 * MS)) for n, w in zip(names, weights, strict=True))
    launch_ns = rng.choice((0, round(whole / 20)))
    cold = Start(cold=Cold(calls, max(launch_ns, 2 * MS) if launch_ns else 0))
    without = replace(t, marked=marked, start=Start(cold=Cold(tuple((n, 5 * US) for n, _ in calls))))
    return StartCase(name, tool, replace(without, start=cold), without, "nothing" if marked else "first-use")


def _allocates(name: str, tool: str, t: Training, rng: random.Random) -> StartCase:
    """Memory is allocated in every layer of every step, and nothing marks a step: no first use."""
    without = replace(t, marked=False)
    return StartCase(name, tool, replace(without, allocations_ns=rng.choice((1, 2, 4)) * MS), without, "allocation")


KINDS: dict[str, Callable[[str, str, Training, random.Random], StartCase]] = {
    "before-marked": partial(_before, marked=True),
    "before-unmarked": partial(_before, marked=False),
    "cold-unmarked": partial(_cold, marked=False),
    "cold-marked": partial(_cold, marked=True),
    "allocates-unmarked": _allocates,
}


def start_requests(seed: int, each: int) -> list[StartRequest]:
    """`each` jobs of every kind."""
    return [StartRequest(seed, kind, number) for kind in KINDS for number in range(each)]
