"""One message as Kineto records it: in a kernel's arguments, or in the shapes of the operator behind it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from typing import Any

import msgspec

from harness.traces.kineto.records import MessageArgs, integer
from harness.traces.kineto.repair import plainly
from harness.traces.messages import Message
from harness.traces.vocabulary import collective_kind, dtype_name

_shapes, _texts = msgspec.json.Decoder(list[Any]), msgspec.json.Decoder(list[str])
_MOST_DIMENSIONS = 64  # as PyTorch has
_TO_ONE = ("c10d::send", "c10d::recv_")
_OUTPUT_THEN_INPUT = ("c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::alltoall_base_")


def from_arguments(name: str, args: MessageArgs) -> Message:
    """A message from Kineto's arguments, or from the tensor shapes of a host's operator or span."""
    dtype = dtype_name(args.dtype) if args.dtype else None
    if args.name is not None or args.elements_in is not None:
        return Message(
            collective_kind(args.name or name),
            dtype,
            integer(args.elements_in),
            integer(args.elements_out),
            group=None if args.group is None else str(args.group),
            group_size=integer(args.group_size),
            peer=integer(args.receiver if args.receiver is not None else args.sender),
        )
    return _from_shapes(name, args)


def _from_shapes(name: str, args: MessageArgs) -> Message:
    kind = collective_kind(name)
    sizes = _element_counts(args.shapes, args.types or [])
    dtype = next((d for d in map(dtype_name, args.types or ()) if d is not None), None)
    if kind == "barrier":
        return Message(kind, None, 0, 0)
    first = sizes[0] if sizes else -1
    second = sizes[1] if len(sizes) > 1 else -1
    if name in _OUTPUT_THEN_INPUT and first > 0 and second > 0:
        ratio = max(first, second) // min(first, second)
        return Message(kind, dtype, second, first, group_size=ratio if kind != "all_to_all" else -1)
    return Message(kind, dtype, first, first, peer=_peer(args.values) if name in _TO_ONE else -1)


def _peer(values: msgspec.Raw) -> int:
    """The other rank among the values of an operator's arguments: tensors, group, rank, tag."""
    try:
        return integer(plainly(_texts, values)[2])
    except (msgspec.DecodeError, IndexError):
        return -1


def _element_counts(shapes: msgspec.Raw, types: Sequence[str]) -> list[int]:
    """Elements of each argument that is a tensor or a list of tensors; other arguments are left out.

    A number has the shape [] as a tensor without dimensions does: only the type shows which of them is one element.
    """
    counts = []
    try:
        listed = plainly(_shapes, shapes)
    except msgspec.DecodeError:
        return []
    for shape, word in zip_longest(listed, types, fillvalue=""):
        if not isinstance(shape, list):
            continue
        nested = bool(shape) and isinstance(shape[0], list)
        tensors = shape if nested else [shape]
        is_tensor = tensors != [[]] or dtype_name(word) is not None or (nested and word != "")
        if is_tensor and all(isinstance(tensor, list) for tensor in tensors):
            counts.append(_elements(tensors))
    return counts


def _elements(tensors: list[list[Any]]) -> int:
    """Elements of all tensors together; -1 where a shape is none."""
    lengths = [length for tensor in tensors for length in tensor]
    if max(map(len, tensors)) > _MOST_DIMENSIONS or not all(isinstance(n, int) and n >= 0 for n in lengths):
        return -1
    return sum(map(prod, tensors))
