"""How many bytes Python's objects hold, with all that only they hold; numbers of tensors, arrays, text and graphs.

Knows PyTorch's tensors, and NumPy's arrays by their attributes.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

MOST_OBJECTS = 500_000  # that are gone through for one element
ENOUGH_OBJECTS = 50_000  # after which no further element is measured
_ALIGNED = 16  # bytes: Python's allocator gives multiples of these
MOST_OPERATORS = 100_000  # of an autograd graph
_ONE_BLOCK = (str, bytes, bytearray, io.BytesIO, io.StringIO)
# What a program has once, whoever names it.
_SHARED = (ModuleType, type, CodeType, BuiltinFunctionType, torch.nn.Module)


def storage_of(value: Any) -> Any:
    """A tensor's storage; None: it has none that holds memory."""
    value = getattr(value, "_local_tensor", value)  # a DTensor's
    with suppress(RuntimeError, NotImplementedError):
        return value.untyped_storage()
    return None


def is_array(value: Any) -> bool:
    """Whether it is one of NumPy's, or of a library that is alike."""
    return type(value).__name__ == "ndarray" and isinstance(getattr(value, "nbytes", None), int)


def own_size(value: Any) -> int:
    """The bytes of a tensor's storage, an array, a text or a buffer; 0 for anything else."""
    if isinstance(value, torch.Tensor):
        storage = storage_of(value)
        return 0 if storage is None else int(storage.nbytes())
    if is_array(value):
        return int(value.nbytes)
    if isinstance(value, io.BytesIO):  # which reserves more for what will come
        return value.getbuffer().nbytes
    return sys.getsizeof(value) if isinstance(value, _ONE_BLOCK) else 0


def operators(value: Any) -> set[Any]:
    """Those of a tensor's autograd graph, as many as are gone through."""
    seen: set[Any] = set()
    open_ones = [value.grad_fn] if isinstance(value, torch.Tensor) and value.grad_fn is not None else []
    while open_ones and len(seen) < MOST_OPERATORS:
        node = open_ones.pop()
        if node not in seen:
            seen.add(node)
            open_ones += [following for following, _ in node.next_functions if following is not None]
    return seen


def saved_for_backward(value: Any) -> Iterator[Any]:
    """What the operators of a tensor's autograd graph hold, as it is, since to unpack it may compute it again."""
    for node in operators(value):
        kind: Any = type(node)
        for name in _saving(kind):
            raw = getattr(node, name)
            for each in raw if isinstance(raw, (list, tuple)) else (raw,):
                yield getattr(each, "data", None)  # PyTorch before 2.3 does not show it


@cache
def _saving(operator: type) -> list[str]:
    return [name for name in dir(operator) if name.startswith("_raw_saved_")]


def kind_of_value(value: Any) -> str:
    """`graph`: a tensor with its autograd graph; `tensor`, `array`, `text`; empty: none of these."""
    if isinstance(value, torch.Tensor):
        return "tensor" if value.grad_fn is None else "graph"
    if is_array(value):
        return "array"
    return "text" if isinstance(value, _ONE_BLOCK) else ""


class MeasuredObjects:
    """Sizes of objects, each of which counts once; a tensor's memory that was there before counts for nobody."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._old: set[int] = set()  # addresses of memory that was there at the look before
        self._now: set[int] = set()
        self._arrays: set[int] = set()

    def look(self) -> None:
        """What is there now was there before the next look. Other objects may have the ids of those of this one."""
        found = {address for value in gc.get_objects() if (address := _address(value)) is not None}
        self._old, self._now = found & self._now, found
        self._seen.clear()

    def sizes(self, elements: Sequence[Any], container: Any) -> list[int]:
        """Of elements of a container, as many as can be measured in a short time."""
        self._seen.add(id(container))
        found: list[int] = []
        for element in elements:
            if len(self._seen) > ENOUGH_OBJECTS and found:
                break
            found.append(self.size(element))
        return found

    def size(self, element: Any) -> int:
        """Bytes of an object and of all that it holds."""
        total, count, open_ones = 0, 0, [element]
        on_stack = _running()
        while open_ones and count < MOST_OBJECTS:
            value = open_ones.pop()
            if id(value) in self._seen or issubclass(type(value), _SHARED) or id(value) in on_stack:
                continue
            self._seen.add(id(value))
            count += 1
            total += self._own(value)
            for saved in saved_for_backward(value):
                if issubclass(type(saved), torch.Tensor):
                    total += self._own(saved)
                else:
                    open_ones.append(saved)
            if isinstance(value, FunctionType):  # not the module in which it was defined
                open_ones += list(value.__closure__ or ())
            elif isinstance(value, FrameType):
                open_ones += list(value.f_locals.values())
            else:
                open_ones += gc.get_referents(value)
        return total

    def _own(self, value: Any) -> int:
        if issubclass(type(value), torch.Tensor):
            address = _address(value)
            if address is None or address in self._old or address in self._seen:
                return 0
            self._seen.add(address)
            return own_size(value)
        if is_array(value):
            while is_array(value.base):  # a part of another one
                value = value.base
            new = id(value) not in self._arrays
            self._arrays.add(id(value))
            return int(value.nbytes) if new else 0
        return -(-sys.getsizeof(value, 0) // _ALIGNED) * _ALIGNED


def _address(value: Any) -> int | None:
    """Where a tensor's memory is; None: it is no tensor, or has none."""
    if not issubclass(type(value), torch.Tensor):
        return None
    storage = storage_of(value)
    with suppress(RuntimeError):
        return None if storage is None else int(storage.data_ptr()) or None
    return None


def _running() -> set[int]:
    """The frames of functions that run now, which the program has anyway."""
    frame: FrameType | None = sys._getframe(1)
    found = set()
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return found
