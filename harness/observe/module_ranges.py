"""Ranges around the calls of a model's modules, for every profiler: `model.layers.3.mlp` in the forward pass, and
`model.layers.3.mlp (backward)` for its part of the backward pass; `model.layers.3.mlp (recomputed)` where activation
checkpointing runs it again there.

Every module is called through `torch.nn.Module.__call__`, which is replaced as long as ranges are wanted. So a range
holds what the module's hooks of FSDP and DeepSpeed do (they gather its parameters), and no module is changed: a model
can be copied, saved and compiled as without. While nobody records, nothing is marked.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from harness.common.run_folder.module_ranges import ALL, BACKWARD, LAYERS, RECOMPUTED
from harness.observe.ranges import Mark, records

_BEGINS = "_begins_of_module_ranges"  # of a tensor: the calls whose output it is
_USUAL_DEPTH = 3  # of a model without repeated layers
_NOT_CALLED = (torch.nn.ModuleList, torch.nn.ModuleDict)
_REPEATING = (torch.nn.ModuleList, torch.nn.Sequential)
_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}  # children that are no parts
_MOST_LOOKED_AT = 8  # values of each tuple, list or dictionary


class ModulePath(NamedTuple):
    """A module of a model: its range's name, and the places around it."""

    name: str
    around: tuple[ModulePath, ...]


class _SeenModule(NamedTuple):
    """A module that was seen. path: None if it gets no range."""

    module: Callable[[], Any]  # a weak reference
    path: ModulePath | None


class _OpenRange(NamedTuple):
    """A range of a backward pass. call: the call of the module that it belongs to."""

    path: ModulePath
    call: object
    mark: Mark


class _Thread(threading.local):
    """What a thread is in: calls of modules, and ranges of a backward pass."""

    def __init__(self) -> None:
        self.calls = 0
        self.backward: list[_OpenRange] = []


class ModuleRanges:
    """Marks the calls of modules until `close`. depth: as `module_depth` has it. for_nsys: nsys may record at any time,
    which PyTorch cannot say."""

    def __init__(self, depth: str, for_nsys: bool) -> None:
        self._depth, self._for_nsys = depth, for_nsys
        self._known: dict[int, _SeenModule] = {}
        self._models: list[str] = []  # the classes of those that were called
        self._names: set[str] = set()  # of their parts
        self._here = _Thread()
        self._off = False
        kind: Any = torch.nn.Module
        call = self._call = kind.__call__

        @functools.wraps(call)
        def called(module: Any, *arguments: Any, **named: Any) -> Any:
            if self._off or is_compiling() or not records(self._for_nsys):
                return call(module, *arguments, **named)  # torch.compile reads no function of an instance
            return self._marked(module, arguments, named)

        kind.__call__ = self._called = called

    def close(self) -> None:
        """Mark no more calls."""
        kind: Any = torch.nn.Module
        if kind.__call__ is self._called:
            kind.__call__ = self._call

    def _marked(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        here, place = self._here, self._try(self._place_of, module)
        here.calls += 1
        mark = None if place is None else Mark(place.name + RECOMPUTED * bool(here.backward))
        try:
            output = self._call(module, *arguments, **named)
        finally:  # also of a call that a recomputation stops when it has what it needs
            if mark is not None:
                mark.end()
            here.calls -= 1
        if place is not None and torch.is_grad_enabled():
            self._try(self._watch_backward, place, output, (arguments, named))
        return output

    def _try(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call it; an error ends the marking, and not the training."""
        try:
            return act(*arguments)
        except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
            self._off = True
            print(f"observer: modules are not marked from here on, because {error!r}", file=sys.stderr)
            return None

    # -- names ---------------------------------------------------------------------------------------------------------

    def _place_of(self, module: Any) -> ModulePath | None:
        known = self._known.get(id(module))
        if (known is None or known.module() is not module) and self._here.calls == 0:
            self._learn(module)  # the training itself calls it: a model
            known = self._known.get(id(module))
        return known.path if known is not None and known.module() is module else None

    def _learn(self, outermost: Any) -> None:
        model, compiled = outermost, []
        while isinstance(inside := getattr(model, "module", getattr(model, "_orig_mod", None)), torch.nn.Module):
            self._know(model, None)  # DDP, DeepSpeed's engine
            compiled += [model] * hasattr(model, "_orig_mod")
            model = inside
        label = type(model).__name__
        self._models.append(label)
        label += str(self._models.count(label)) if self._models.count(label) > 1 else ""
        parts = list(_parts(model, "", 0))
        taken = any(part.name in self._names for part in parts)  # by a model before: the parts get other names
        prefix = f"{label}." if taken else ""
        self._names.update(part.name for part in parts)
        deepest = _deepest(model, self._depth)
        places = {"": ModulePath(label, ())}
        for each in (*compiled, model):  # what is inside of a compiled model is not called one by one
            self._know(each, places[""])
        for part in parts:
            around, is_called = places[part.around], not isinstance(part.module, _NOT_CALLED)
            has_range = is_called and part.level <= deepest and part.name not in places
            if part.name not in places:
                places[part.name] = ModulePath(prefix + part.name, (*around.around, around)) if has_range else around
            self._know(part.module, places[part.name] if has_range else None)

    def _know(self, module: Any, module_path: ModulePath | None) -> None:
        key = id(module)
        self._known[key] = _SeenModule(weakref.ref(module, lambda _: self._known.pop(key, None)), module_path)

    # -- backward ------------------------------------------------------------------------------------------------------

    def _watch_backward(self, module_path: ModulePath, output: Any, inputs: Any) -> None:
        """The backward pass of a call begins when a gradient of its output is there, and ends with those of its inputs;
        without such inputs it ends where another part's begins, or with the pass."""
        call = object()
        for tensor in filter(_is_made, tensors_of(output)):
            begins: list[tuple[ModulePath, object]] | None = getattr(tensor, _BEGINS, None)
            if begins is None:
                begins = []
                setattr(tensor, _BEGINS, begins)
                _on_gradient(tensor, partial(self._try, self._backward_of, begins))
            begins.append((module_path, call))
        for tensor in filter(_is_made, tensors_of(inputs)):
            _on_gradient(tensor, partial(self._try, self._backward_ends, call))

    def _backward_of(self, begins: list[tuple[ModulePath, object]]) -> None:
        """A gradient is there of what several calls gave back, the innermost one first."""
        for place, call in reversed(begins):
            self._backward_begins(place, call)

    def _backward_begins(self, module_path: ModulePath, call: object) -> None:
        opened = self._here.backward
        if not records(self._for_nsys) or any(one.call is call for one in opened):
            return
        while opened and opened[-1].path not in module_path.around:
            opened.pop().mark.end()
        if not opened:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._end_backward(0))
        opened.append(_OpenRange(module_path, call, Mark(module_path.name + BACKWARD)))

    def _backward_ends(self, call: object) -> None:
        depth = next((i for i, one in enumerate(self._here.backward) if one.call is call), None)
        if depth is not None:
            self._end_backward(depth)

    def _end_backward(self, depth: int) -> None:
        """End the ranges that are open inside of `depth` others."""
        opened = self._here.backward
        while len(opened) > depth:
            opened.pop().mark.end()


def _is_made(tensor: torch.Tensor) -> bool:
    """Whether an operator made it: what lives longer than a step would keep the hooks of all steps."""
    return tensor.grad_fn is not None


def _on_gradient(tensor: torch.Tensor, act: Callable[[], None]) -> None:
    """Call it when the gradient of a tensor is there, which stays as it is."""
    register: Any = tensor.register_hook
    register(lambda _: act())


class _ModulePart(NamedTuple):
    """A module inside of a model. level: how many called modules are around it. around: the name of the next one."""

    name: str
    module: Any
    level: int
    around: str


def _parts(module: Any, name: str, level: int) -> Iterator[_ModulePart]:
    """All modules inside, the outer ones first. A wrapper and what it wraps have one name."""
    for key, child in module.named_children():
        if key in _WRAPPERS:
            yield from _parts(child, name, level)
            continue
        below = level + (not isinstance(module, _NOT_CALLED))
        path = f"{name}.{key}" if name else key
        yield _ModulePart(path, child, below, name)
        yield from _parts(child, path, below)


def _deepest(model: Any, depth: str) -> float:
    """The level of the innermost modules that get a range."""
    if depth != LAYERS:
        return float("inf") if depth == ALL else int(depth)
    levels = [
        part.level + (not isinstance(part.module, _NOT_CALLED))
        for part in _parts(model, "", 0)
        if isinstance(part.module, _REPEATING) and _repeats(list(part.module.children()))
    ]
    return min(levels, default=_USUAL_DEPTH - 1) + 1


def _repeats(children: list[Any]) -> bool:
    """Whether these are layers: several of one kind, with parts of their own."""
    return len(children) > 1 and len(set(map(type, children))) == 1 and any(True for _ in children[0].children())


is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
"""Whether torch.compile reads the program now: what is called is not run."""


def tensors_of(value: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """The tensors of a value, and of tuples, lists and dictionaries in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, (tuple, list, dict)):
        values = list(value.values() if isinstance(value, dict) else value)
        for inside in values[:_MOST_LOOKED_AT]:
            yield from tensors_of(inside, depth - 1)


def size_of(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of a batch, None where it does not say.

    Samples are the rows of its first tensor; tokens are the entries of `input_ids`, or of a table of integers.
    """
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        named = batch.get("input_ids") if hasattr(batch, "get") else None
        if isinstance(named, torch.Tensor) and named.dim() == 2:
            return len(named), named.numel()
    for tensor in tensors_of(batch):
        if tensor.dim() == 0:
            continue
        whole = tensor.dim() == 2 and tensor.dtype == torch.int64
        return len(tensor), tensor.numel() if whole else None
    return None, None
