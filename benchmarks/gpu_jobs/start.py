"""How a simulated job starts: imports, the meeting of its ranks, its model and the copies of it, compiling, a capture,
and what the first pass uses for the first time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .program import COMPUTE, COPY, US, Begin, Call, Compute, End, Instruction, Launch, Wait, Work
from .training import Start, Training

_CONTEXT = "cudaDeviceGetStreamPriorityRange"
_COPIES = 24  # of the model


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
