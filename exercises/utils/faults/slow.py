"""Injectors of the faults that make a training slower: its steps, on the host, on the device or on the link; and its
checkpoints."""

from __future__ import annotations

import gc
import importlib
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from exercises.utils.faults.moments import Moment, wrap
from exercises.utils.faults.target import FaultTarget, PerStep
from harness.common.faults.fault import Fault
from harness.common.system.files import write_whole

# The calls of a process group by which Python sends, and the place of the tensors that this rank gives.
SENDING = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "broadcast": 0,
    "reduce": 0,
    "send": 0,
    "allgather": 1,
    "_allgather_base": 1,
    "all_gather_single": 1,
    "allgather_into_tensor_coalesced": 1,
    "reduce_scatter": 1,
    "_reduce_scatter_base": 1,
    "reduce_scatter_single": 1,
    "reduce_scatter_tensor_coalesced": 1,
    "alltoall": 1,
    "alltoall_base": 1,
    "all_to_all_single": 1,
}

# Small enough for a fine measure: a millisecond or less on one core, and on a GPU.
SIZE = {"cpu": 192, "cuda": 2048}
CALIBRATED_WITH = 50  # products
# What writes a file of a checkpoint, inside the function that a training calls. The first one is also given memory, and
# torch.distributed.checkpoint gives it tensor after tensor.
WRITERS = (
    ("torch.serialization", "_open_zipfile_writer"),
    ("safetensors.torch", "serialize_file"),
    ("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict"),
)


def write_checkpoints(fault: Fault, target: FaultTarget) -> None:
    """Write after the update of the parameters; the file is removed when the training ends."""
    path = target.run_dir / f"checkpoint-rank{target.rank}.pt"
    target.until.callback(path.unlink, missing_ok=True)
    target.when_due("updated", fault, lambda: _write(path, target))


def _write(path: Path, target: FaultTarget) -> None:
    # Under ZeRO-3 a parameter is empty between its uses, and its shard is what this rank has.
    parameters = [parameter for model in target.models for parameter in model.parameters()]
    shards = [getattr(each, "ds_tensor", each).detach() for each in parameters]
    write_whole(path, partial(torch.save, shards))


def stall_data(fault: Fault, target: FaultTarget) -> None:
    """Sleep where the training waits for its batch."""
    target.when_due("load", fault, lambda: time.sleep(fault.ns() / 1e9))


def stall_host(fault: Fault, target: FaultTarget) -> None:
    """Sleep at the start of the phase."""
    target.when_due(cast(Moment, fault.values["in"]), fault, lambda: time.sleep(fault.ns() / 1e9))


def collect_garbage(fault: Fault, target: FaultTarget) -> None:
    """Make the heap, and collect in forward: nothing is found, and every object is looked at."""
    gc.unfreeze()  # also the objects of PyTorch, as in a training that does not freeze them
    target.until.callback(gc.freeze)
    heap = [{"next": [number]} for number in range(1000 * fault.count("objects"))]
    target.until.callback(heap.clear)
    target.when_due("forward", fault, gc.collect)


def synchronise(fault: Fault, target: FaultTarget) -> None:
    """Synchronise after the forward of each layer."""
    waiting = PerStep(fault, target)

    def synchronise(*_: object) -> None:
        with waiting.counted():
            torch.cuda.synchronize()

    for model in target.models:
        for layer in layers_of(model):
            target.until.callback(layer.register_forward_hook(synchronise).remove)


def layers_of(model: nn.Module) -> Iterator[nn.Module]:
    """The model's layers: transformers and megatron-core both keep them in a list called `layers`."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] == "layers":
            yield from module


def lengthen_sequences(fault: Fault, target: FaultTarget) -> None:
    """Repeat each sample, with its labels, behind itself."""
    times = fault.count("times")

    def longer(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tokens.repeat(1, times) for name, tokens in batch.items()}

    target.moments.change_batches(longer)


def split_kernels(fault: Fault, target: FaultTarget) -> None:
    """Let the model's forward, inside of what data parallelism puts around it, go through the samples."""
    for model in target.models:
        wrap(getattr(model, "module", model), "forward", _by_sample, target.until)


def _by_sample(forward: Callable[..., Any]) -> Callable[..., Any]:
    # Imported here, because it imports transformers, which a training of the user's own may not have.
    from exercises.utils.data import IGNORED

    def by_sample(*, input_ids: Tensor, labels: Tensor) -> Any:
        counted = (labels[:, 1:] != IGNORED).sum(dim=1)  # the mean over these is the loss: each predicts the next one
        loss: Any = 0.0
        output: Any = None
        for sample, weight in enumerate(counted / counted.sum()):
            output = forward(input_ids=input_ids[sample : sample + 1], labels=labels[sample : sample + 1])
            loss = loss + weight * output.loss
        output.loss = loss
        return output

    return by_sample


def slow_link(fault: Fault, target: FaultTarget) -> None:
    """Sleep before each message, in the thread that sends it: of another thread a trace shows no operators."""
    delay = PerStep(fault, target)

    def late(collective: Callable[..., Any], index: int) -> Callable[..., Any]:
        def delayed(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            size_bytes = bytes_of(args[index]) if len(args) > index else 0
            with delay.counted():
                time.sleep(delay_ns(fault, size_bytes) / 1e9)
            return collective(group, *args, **kwargs)

        return delayed

    for name, place in SENDING.items():
        if hasattr(ProcessGroup, name):
            wrap(ProcessGroup, name, partial(late, index=place), target.until)
    for model in target.models:
        if isinstance(model, DistributedDataParallel):
            # DDP sends from C++. With this hook, which computes the same, it sends from Python.
            model.register_comm_hook(None, allreduce_hook)


def delay_ns(fault: Fault, size_bytes: int) -> int:
    """Latency + size / bandwidth of the link, in nanoseconds."""
    megabits = fault.values["mbps"]
    return fault.ns() + (0 if megabits == "unlimited" else round(8e3 * size_bytes / float(megabits)))


def bytes_of(tensors: torch.Tensor | Iterable[Any]) -> int:
    """Size of a tensor, or of all tensors in nested lists."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(bytes_of, tensors))


def compute_more(fault: Fault, target: FaultTarget) -> None:
    """Multiply in the step's first forward: on the CPU until the time is over, on a GPU a number of times."""
    multiply = _products(target.device)
    if target.device.type == "cuda":
        _queue(multiply, fault, target)
        return

    def compute() -> None:
        end_ns = time.perf_counter_ns() + fault.ns()
        while time.perf_counter_ns() < end_ns:
            multiply(1)

    multiply(CALIBRATED_WITH)  # the first products are slow, and would overrun
    target.when_due("forward", fault, compute)


def _queue(multiply: Callable[[int], None], fault: Fault, target: FaultTarget) -> None:
    """Products that a GPU does later than they are launched: their time is read when a later step begins."""
    running: list[tuple[int, int, torch.cuda.Event, torch.cuda.Event]] = []

    def timed(count: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        multiply(count)
        end.record()
        return begin, end

    timed(CALIBRATED_WITH)  # the first products are slow
    begin, end = timed(CALIBRATED_WITH)
    end.synchronize()
    each_ms = begin.elapsed_time(end) / CALIBRATED_WITH
    enough = max(1, round(fault.ns() / 1e6 / each_ms))

    def compute() -> None:
        if fault.due(target.moments.step):
            running.append((target.moments.step, time.time_ns(), *timed(enough)))

    def record() -> None:
        while running and running[0][3].query():  # type: ignore[no-untyped-call]
            step, unix_ns, begin, end = running.pop(0)
            target.record(fault, step, round(begin.elapsed_time(end) * 1e6), unix_ns)

    def finish() -> None:
        torch.cuda.synchronize()
        record()

    target.moments.at("forward", compute)
    target.moments.at_begin(record)
    target.until.callback(finish)


def _products(device: torch.device) -> Callable[[int], None]:
    """Multiplies two square matrices, again and again into the same third."""
    shape = (SIZE[device.type],) * 2
    left, right, result = (torch.ones(shape, device=device) for _ in range(3))

    def multiply(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                torch.mm(left, right, out=result)

    return multiply


# -- beside the usual steps: checkpoints -------------------------------------------------------------------------------


def write_checkpoints_slowly(fault: Fault, target: FaultTarget) -> None:
    """Sleep where PyTorch or safetensors writes a file in this process, as while a slow disk takes it."""
    rank_pid = os.getpid()  # Megatron also writes in processes beside each other: their delays would not add up

    def late(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*args: Any, **kwargs: Any) -> Any:
            in_file = write.__name__ != WRITERS[0][1] or isinstance(args[0], (str, os.PathLike, io.BufferedWriter))
            if os.getpid() == rank_pid and in_file:
                unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
                time.sleep(fault.ns() / 1e9)
                target.record(fault, target.moments.step, time.perf_counter_ns() - begin_ns, unix_ns)
            return write(*args, **kwargs)

        return written

    for name, function in WRITERS:
        with suppress(ImportError, AttributeError):  # another version of PyTorch, or no safetensors
            wrap(importlib.import_module(name), function, late, target.until)
