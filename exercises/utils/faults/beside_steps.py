"""Injectors of the faults that take a job's time beside its usual steps: the first forward, checkpoints, the end."""

from __future__ import annotations

import atexit
import importlib
import io
import multiprocessing.process
import multiprocessing.util
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from exercises.utils.faults.moments import wrap
from exercises.utils.faults.startup import write_line
from exercises.utils.faults.target import Target
from harness.common.faults import Fault, FaultLine

FUNCTIONS = 20  # that are generated and compiled at a time: some milliseconds
TEMPLATE = """
def fused_{number}(left, right, scale):
    total = 0.0
    for row, column in zip(left, right):
        product = row * column * scale + {number}
        total += product if product > 0 else -product
    return total
"""


def compile_long(fault: Fault, target: Target) -> None:
    """Compile in the first forward until the time is over."""
    done: list[int] = []

    def compile_functions() -> None:
        if done:
            return
        done.append(target.moments.step)
        unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
        compiled = 0
        while time.perf_counter_ns() - begin_ns < fault.ns():
            numbers = range(compiled, compiled + FUNCTIONS)
            compile("".join(TEMPLATE.format(number=number) for number in numbers), "<generated>", "exec")
            compiled += FUNCTIONS
        target.record(fault, target.moments.step, time.perf_counter_ns() - begin_ns, unix_ns)

    target.moments.at("forward", compile_functions)


# What writes a file of a checkpoint, inside the function that a training calls. The first one is also given memory, and
# torch.distributed.checkpoint gives it tensor after tensor.
WRITERS = (
    ("torch.serialization", "_open_zipfile_writer"),
    ("safetensors.torch", "serialize_file"),
    ("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict"),
)


def write_checkpoints_slowly(fault: Fault, target: Target) -> None:
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


WRITE_S = 0.05  # until a line is on the slow disk


def end_late(fault: Fault, target: Target) -> None:
    """Write results, line by line, when the script has ended."""
    path = target.run_dir / f"results-rank{target.rank}.txt"

    def write_results() -> None:
        if getattr(sys, "last_value", None) is not None:  # the script failed
            return
        unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
        with path.open("w", encoding="ascii") as file:
            while (left_ns := begin_ns + fault.ns() - time.perf_counter_ns()) > 0:
                file.write(f"{left_ns}\n")
                file.flush()
                os.fsync(file.fileno())
                time.sleep(min(WRITE_S, left_ns / 1e9))
        path.unlink()
        ns = time.perf_counter_ns() - begin_ns
        write_line(target.run_dir, FaultLine(target.moments.step, fault.name, target.rank, ns, unix_ns))

    if multiprocessing.process.parent_process() is None:
        atexit.register(write_results)
    else:  # such a child ends without atexit
        multiprocessing.util.Finalize(None, write_results, exitpriority=200)
