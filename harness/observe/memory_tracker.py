"""Sees every tensor that a training makes and when its memory is free again, and writes who held it:
memory/rank<R>.json.

Works on every device, since it looks at the operators and not at the allocator; so it does not see what an operator
needs inside itself. The way is that of torch.distributed._tools.MemTracker. That has the same peak in all, but tells
neither who nor when, knows no inputs and no buffers of communication, and refuses gradient accumulation.
"""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from harness.common.run_folder.memory_snapshot import MOST_STEPS, VERSION
from harness.common.run_folder.run_files import MEMORY_SNAPSHOTS
from harness.common.system.files import write_whole_text
from harness.observe import ranges
from harness.observe.last_words import is_out_of_memory
from harness.observe.lines import SourceLine, is_users
from harness.observe.memory_blocks import (
    BlockOwner,
    MemoryBlock,
    MemoryPhase,
    kept_by_line,
    moment,
    phase_kind,
    timeline,
    without_numbers,
)

MOST_BLOCKS = 2_000_000  # of some 200 bytes each: a step of a large model makes 20 000
_OF_ZERO3 = ("ds_tensor", "ds_secondary_tensor")  # a parameter's shard, and hpZ's copy of it inside a node
_BEFORE = BlockOwner("before the first step", "", "")
_ELSEWHERE = BlockOwner("made elsewhere", "", "")

# Of torch.cuda.memory_stats: what tensors have, what PyTorch took from CUDA, and what of split blocks lies idle.
_ALLOCATOR = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
}
_SHOWN = 5  # holders that an error message names


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch has no types for it
    """Inside, `blocks` grows with every tensor on `device`. failed: called when an allocation fails, at that moment."""

    def __init__(self, device_type: str, failed: Callable[[BaseException], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.blocks: list[MemoryBlock] = []
        self.step: int | None = None
        self._first_step: int | None = None
        self.start_ns = time.perf_counter_ns()
        self.on = True
        self._device, self._failed = device_type, failed
        self._live: dict[int, tuple[MemoryBlock, object]] = {}  # by the address of the storage
        self._ranges: list[tuple[str, MemoryPhase | None]] = [("", None)]  # and those that are open, the innermost last
        self._modules: list[str] = []
        self._names: dict[int, str] = {}
        self._parameters: dict[int, weakref.ref[Any]] = {}  # by id: == of tensors is a tensor
        self._optimizer: weakref.ref[Optimizer] | None = None  # the one that stepped last
        self._handles: list[Any] = []
        self._users: dict[CodeType, bool] = {}
        self.operator = ""  # the one that had no memory
        self._process = os.getpid()

    def where(self, operator: str = "") -> BlockOwner:
        return BlockOwner(self._ranges[-1][0], self._modules[-1] if self._modules else "", operator, self._line())

    def _line(self) -> SourceLine | None:
        """The user's innermost line."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code not in self._users:
                self._users[code] = is_users(code.co_filename)
            if self._users[code]:
                return SourceLine(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name)
            frame = frame.f_back
        return None

    @property
    def full(self) -> bool:
        return len(self.blocks) >= MOST_BLOCKS

    def step_begins(self, step: int) -> None:
        self.step = step
        if self._first_step is None:
            self._first_step = step

    def range_begins(self, name: str) -> None:
        kind = phase_kind(name)
        self._ranges.append((without_numbers(name), self._ranges[-1][1] if kind is None else MemoryPhase(kind)))

    def range_ends(self) -> None:
        if len(self._ranges) == 1:  # it began before the record
            return
        _, phase = self._ranges.pop()
        if phase is not None and phase is not self._ranges[-1][1]:
            phase.end_ns = time.perf_counter_ns()

    def __enter__(self) -> MemoryTracker:
        self.on = True
        self._handles = [
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ends, always_call=True),
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing()  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self.on = False
        del self._ranges[1:], self._modules[:]
        super().__exit__(*(error or (None, None, None)))  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, Tensor) and kind.__name__ == "DTensor" for kind in types):
            return NotImplemented  # it then works on its local tensors, which come by here
        if not self.on or os.getpid() != self._process:
            return func(*args, **(kwargs or {}))
        for tensor in _tensors(args):
            self._known_or_from_elsewhere(tensor)
        try:
            made = func(*args, **(kwargs or {}))
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                self.operator = str(func)
                self._failed(error)
            raise
        self._see_results(made, str(func))
        if func.namespace == "c10d":
            for tensor in _tensors(args):
                self._label(tensor, "buffers", weak=True)
        return made

    def _see_results(self, made: Any, operator: str) -> None:
        who: BlockOwner | None = None
        for tensor in _tensors((made,)):
            if tensor.device.type == self._device and tensor.untyped_storage()._cdata not in self._live:
                who = who or self.where(operator)
                self._block_of(tensor, who, self._ranges[-1][1])

    def cut_off(self) -> None:
        """An error ends what is open now."""
        for _, phase in self._ranges:
            if phase is not None:
                phase.cut_off = True

    def label_owned(self) -> None:
        """The gradients and the optimizer's state that are there now are labelled."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is not None:
            self._optimizer_ends(optimizer, (), {})
        for known in list(self._parameters.values()):
            if (parameter := known()) is not None:
                self._label(parameter.grad, "gradients")
                self._label(getattr(parameter, "main_grad", None), "gradients", lasting=True)

    def _known_or_from_elsewhere(self, tensor: Tensor) -> None:
        """What an operator takes and none has made was there before, or came from a process that loads data."""
        block = self._block_of(tensor, _ELSEWHERE, None)
        if block is not None and block.who is _ELSEWHERE and not tensor.is_floating_point():
            block.label = block.label or "inputs"

    def _block_of(self, tensor: Tensor, who: BlockOwner, phase: MemoryPhase | None) -> MemoryBlock | None:
        if tensor.device.type != self._device or self.full:
            return None
        storage = tensor.untyped_storage()
        known = self._live.get(storage._cdata)
        return self._begin(storage, who, phase) if known is None else known[0]

    def _begin(self, storage: Any, who: BlockOwner, phase: MemoryPhase | None) -> MemoryBlock | None:
        size = storage.nbytes()
        if not size:
            return None
        block = MemoryBlock(size, time.perf_counter_ns(), who, phase, self.step)
        self.blocks.append(block)
        key = storage._cdata
        self._live[key] = block, weakref.ref(storage, lambda _: self._end(key))
        return block

    def _end(self, key: int) -> None:
        known = self._live.pop(key, None)
        if known is not None:
            known[0].died_ns = time.perf_counter_ns()

    def _label(self, tensor: Any, label: str, *, weak: bool = False, lasting: bool = False) -> None:
        """Say what a tensor's block is for. weak: only if nobody has said so. lasting: it is there in every step, so
        one that no operator made in the first one was there before."""
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's
        if not isinstance(tensor, Tensor) or not self.on:
            return
        block = self._block_of(tensor, _ELSEWHERE, None)
        if block is None:
            return
        if block.label is None or (block.label == "buffers" and not weak):
            block.label = label
        if lasting and block.who is _ELSEWHERE and block.step in (None, self._first_step):
            block.who, block.born_ns = _BEFORE, self.start_ns

    def _module_begins(self, module: Any, inputs: Any) -> None:
        if not self._modules:
            self._names.update((id(inner), name) for name, inner in module.named_modules())
            self._label_weights(module.parameters())
            zero3 = getattr(module, "optimizer", None)  # where the outermost module is DeepSpeed's engine
            self._label(getattr(zero3, "grad_partitions_flat_buffer", None), "gradients", lasting=True)
        self._modules.append(self._names.get(id(module)) or type(module).__name__)

    def _module_ends(self, module: Any, inputs: Any, output: Any) -> None:
        if self._modules:
            self._modules.pop()
        self._label_weights(module.parameters(recurse=False))  # ZeRO-3 has gathered them meanwhile

    def _label_weights(self, parameters: Iterator[Any]) -> None:
        for parameter in parameters:
            self._label(parameter, "weights", lasting=True)
            for name in _OF_ZERO3:
                self._label(getattr(parameter, name, None), "weights", lasting=True)
            if id(parameter) not in self._parameters:
                self._parameters[id(parameter)] = weakref.ref(parameter)
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.register_post_accumulate_grad_hook(lambda tensor: self._label(tensor.grad, "gradients"))

    def _optimizer_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.label_owned()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._label(parameter.grad, "gradients")
                # A copy of the weights: those of the model have their label.
                self._label(parameter, "optimizer", lasting=True)

    def _optimizer_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                self._label(value, "optimizer")

    def _resizing(self) -> Callable[[Any, int], Any]:
        """FSDP frees and fills the storages of gathered parameters so."""
        resize = self._resize

        def resized(storage: Any, size: int) -> Any:
            known = self._live.get(storage._cdata)
            self._end(storage._cdata)
            result = resize(storage, size)
            if storage.device.type == self._device and self.on and not self.full:
                block = self._begin(storage, self.where(), self._ranges[-1][1])
                if block is not None and known is not None:
                    block.label = known[0].label
            return result

        return resized


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, also inside lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


class Snapshot:
    """As a context manager, and between `resume` and `pause`, it sees every tensor; what pauses it, and a failed
    allocation, write the file. in_profiled_steps: steps are recorded whose times count."""

    def __init__(self, run_dir: Path, rank: int, device_type: str, in_profiled_steps: bool = False) -> None:
        self._path = MEMORY_SNAPSHOTS.path(run_dir, rank)
        self._rank, self._device, self._in_profiled_steps = rank, device_type, in_profiled_steps
        self._tracker = MemoryTracker(device_type, self._failed)
        self._steps: list[tuple[int, int]] = []
        self._failure: dict[str, Any] | None = None
        self._allocator: dict[str, int] | None = None

    def step_begins(self, step: int) -> None:
        if len(self._steps) < MOST_STEPS and self.on:
            self._steps.append((step, time.perf_counter_ns() - self._tracker.start_ns))
        self._tracker.step_begins(step)

    @property
    def on(self) -> bool:
        return self in ranges.listeners

    def resume(self) -> None:
        ranges.listeners.append(self)
        self._tracker.__enter__()

    def pause(self) -> None:
        """Nothing further is recorded, until it is resumed: write the file."""
        if self.on:
            self._tracker.label_owned()
            ranges.listeners.remove(self)
            self._tracker.__exit__()
            self._write()

    def kept_by_line(self, steps: range) -> dict[SourceLine | None, int]:
        """As of the blocks."""
        return kept_by_line(self._tracker.blocks, steps)

    def range_begins(self, name: str) -> None:
        self._tracker.range_begins(name)

    def range_ends(self) -> None:
        self._look_at_allocator()  # at the end of each part of a step, before what it held goes
        self._tracker.range_ends()

    def __enter__(self) -> Snapshot:
        self.resume()
        return self

    def __exit__(self, *error: Any) -> None:
        self.pause()

    def _look_at_allocator(self) -> None:
        """Keep the GPU allocator's numbers of the moment when tensors have most."""
        if self._device != "cuda" or not self.on:
            return
        stats = torch.cuda.memory_stats()
        found = {name: int(stats[key]) for name, key in _ALLOCATOR.items() if key in stats}
        best = self._allocator or {}
        if found.get("allocated_bytes", 0) > best.get("allocated_bytes", 0):
            self._allocator = found

    def _failed(self, error: BaseException) -> None:
        """An allocation failed: say who holds the memory now, and keep it; the training may still catch the error."""
        if not self.on or self._failure is not None:
            return
        self._look_at_allocator()
        tracker, now_ns = self._tracker, time.perf_counter_ns()
        tracker.label_owned()
        tracker.cut_off()
        place = tracker.where(tracker.operator)
        self._failure = moment(tracker.blocks, now_ns, tracker.start_ns, place, tracker.step)
        self._failure["error"] = str(error).partition("\n")[0][:500]
        self._write()
        print(_words(self._rank, self._failure), file=sys.stderr, flush=True)

    def _write(self) -> None:
        tracker = self._tracker
        end_ns = time.perf_counter_ns()
        line = timeline(tracker.blocks, tracker.start_ns, end_ns)
        peak = line.peak and moment(tracker.blocks, line.peak.born_ns, tracker.start_ns, line.peak.who, line.peak.step)
        allocator = self._allocator and self._allocator | {"peak_allocated_bytes": torch.cuda.max_memory_allocated()}
        document = {
            "version": VERSION,
            "rank": self._rank,
            "device": self._device,
            "complete": not tracker.full,
            "in_profiled_steps": self._in_profiled_steps,
            "steps": [{"step": step, "start_ns": start_ns} for step, start_ns in self._steps],
            "times_ns": line.times_ns,
            "bytes": line.totals,
            "peak": peak,
            "failure": self._failure,
            "allocator": allocator,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_text(self._path, json.dumps(document, separators=(",", ":")) + "\n")


def _words(rank: int, failure: dict[str, Any]) -> str:
    total = sum(failure["bytes"].values())
    parts = sorted(((size, name) for name, size in failure["bytes"].items() if size), reverse=True)
    lines = [
        f"rank {rank}: no memory for {failure['operator']} in {failure['module'] or failure['range'] or 'no range'}; "
        f"tensors hold {total / 1e6:,.1f} MB: " + ", ".join(f"{name} {size / 1e6:,.1f}" for size, name in parts)
    ]
    lines += [
        f"  {holder['bytes'] / 1e6:,.1f} MB {holder['category']}: "
        + " · ".join(filter(None, (holder["range"], holder["module"])))
        for holder in failure["holders"][:_SHOWN]
    ]
    return "\n".join(lines)
