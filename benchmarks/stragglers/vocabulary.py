"""The names of operations and of a timeline's columns, as Megatron's timers and ByteDance's StragglerAnalysis write
them.

A new name is one line here. Knows no file.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

# One timer of Megatron around two operations that run at once: both last as long as it.
FUSED = {
    "forward-send-backward-recv": ("forward-send", "backward-recv"),
    "backward-send-forward-recv": ("backward-send", "forward-recv"),
    "forward-send-forward-recv": ("forward-send", "forward-recv"),
    "backward-send-backward-recv": ("backward-send", "backward-recv"),
}
TIMES = ("start", "duration", "end")
UNITS_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}


class Role(IntEnum):
    """What an operation is in a training step. Those from GC on follow the last pass in this order."""

    FORWARD = 0
    BACKWARD = 1
    FORWARD_SEND = 2
    FORWARD_RECV = 3
    BACKWARD_SEND = 4
    BACKWARD_RECV = 5
    GATHER = 6  # of parameters, over the data-parallel ranks
    GC = 7  # Python's collector
    LAYERNORM = 8  # gradients that tensor-parallel ranks share
    EMBEDDING = 9  # gradients that the first and the last stage share
    REDUCE = 10  # of gradients, over the data-parallel ranks
    SEPARATE = 11  # those of gradients that are reduced apart from the overlapped ones
    CLIP = 12  # the norm of all gradients, over all workers
    OPTIMIZER = 13


COMPUTE = (Role.FORWARD, Role.BACKWARD)
SENDS = (Role.FORWARD_SEND, Role.BACKWARD_SEND)
BETWEEN_STAGES = (Role.FORWARD_SEND, Role.FORWARD_RECV, Role.BACKWARD_SEND, Role.BACKWARD_RECV)
# Their ideal is a mean; that of all others, which communicate, is a median.
BY_MEAN = (*COMPUTE, Role.GC, Role.OPTIMIZER)

_ROLES = {
    Role.FORWARD: ("forward-compute", "forward", "fwd", "forward-step"),
    Role.BACKWARD: ("backward-compute", "backward", "bwd", "backward-step"),
    Role.FORWARD_SEND: ("forward-send", "send-forward"),
    Role.FORWARD_RECV: ("forward-recv", "recv-forward"),
    Role.BACKWARD_SEND: ("backward-send", "send-backward"),
    Role.BACKWARD_RECV: ("backward-recv", "recv-backward"),
    Role.GATHER: ("params-all-gather",),
    Role.GC: ("gc",),
    Role.LAYERNORM: ("layernorm-grads-all-reduce",),
    Role.EMBEDDING: ("embedding-grads-all-reduce",),
    Role.REDUCE: ("grads-reduce-scatter", "grads-all-reduce", "all-grads-sync"),
    Role.SEPARATE: ("separate-grads-all-reduce",),
    Role.CLIP: ("optimizer-clip-main-grad",),
    Role.OPTIMIZER: ("optimizer", "optimizer-step"),
}
ROLES = {name: role for role, names in _ROLES.items() for name in names}
# The first name of each role stands for the others; what reduces gradients keeps its name: there are several ways.
ONE_NAME = {name: names[0] for role, names in _ROLES.items() if role != Role.REDUCE for name in names}
SHOWN = {  # where a report counts several names as one, by their roles
    Role.FORWARD: "forward-compute",
    Role.BACKWARD: "backward-compute",
    Role.FORWARD_SEND: "forward-pp-comm",
    Role.FORWARD_RECV: "forward-pp-comm",
    Role.BACKWARD_SEND: "backward-pp-comm",
    Role.BACKWARD_RECV: "backward-pp-comm",
}


def plain_operation(name: str) -> str:
    """An operation's name with its words between dashes, in small letters.

    >>> plain_operation("Forward_Compute")
    'forward-compute'
    """
    return re.sub(r"[\s_]+", "-", name.strip().lower())


class Column(NamedTuple):
    """A column of a timeline: what it means in words, and the names that it may have."""

    meaning: str
    names: tuple[str, ...]


COLUMNS = {
    "operation": Column("the operation", ("optype", "op_type", "operation", "op", "name", "event")),
    "start": Column("its start", ("start_ts", "start", "start_time", "ts", "timestamp", "begin")),
    "duration": Column("its duration", ("duration", "dur", "elapsed")),
    "end": Column("its end", ("end_ts", "end", "end_time")),
    "rank": Column("the rank", ("rank", "global_rank", "worker", "worker_id")),
    "dp_rank": Column("the data-parallel rank", ("dp_rank", "dp", "data_parallel_rank")),
    "stage": Column(
        "the pipeline's stage",
        ("stage", "pp_rank", "pp", "pp_stage", "pipeline_stage", "pipeline_rank", "pipeline_parallel_rank"),
    ),
    "tp_rank": Column("the tensor-parallel rank", ("tp_rank", "tp", "tensor_parallel_rank")),
    "step": Column("the step", ("step", "iteration", "iter", "step_id", "train_step")),
    "micro_batch": Column(
        "the micro-batch", ("mb_id", "micro_batch", "mb", "microbatch", "microbatch_id", "micro_batch_id")
    ),
    "chunk": Column("the model chunk", ("mc", "model_chunk", "chunk", "virtual_stage", "vpp_rank")),
    "sequence": Column("the order of operations of one kind", ("seq_id", "sequence", "seq")),
}


def column_of(head: str) -> tuple[str, float | None] | None:
    """The column that a head names, and the unit of a time in nanoseconds where the head ends with it; None: no column.

    >>> column_of("start_us"), column_of("PP rank"), column_of("colour")
    (('start', 1000.0), ('stage', None), None)
    """
    plain = re.sub(r"[\s\-]+", "_", head.strip().lower())
    plain = re.sub(r"[(\[](\w+)[)\]]$", r"_\1", plain).replace("__", "_")
    if plain in _BY_NAME:
        return _BY_NAME[plain], None
    stem, _, unit = plain.rpartition("_")
    column = _BY_NAME.get(stem)
    return (column, UNITS_NS[unit]) if column in TIMES and unit in UNITS_NS else None


_BY_NAME = {name: column for column, entry in COLUMNS.items() for name in entry.names}
