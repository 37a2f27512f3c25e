"""Named ranges around the parts of training, for every profiler.

One context manager writes each range twice: as NVTX, which nsys records, and as `record_function`, which
torch.profiler records. Without a profiler it costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import torch


class Listener(Protocol):
    """Is told of every range, also without a profiler."""

    def range_begins(self, name: str) -> None:
        """A range begins inside those that are open."""

    def range_ends(self) -> None:
        """The innermost range ends."""


listeners: list[Listener] = []


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark the time spent inside as a range called `name`."""
    push, pop = nvtx_functions()
    push(name)
    told = tuple(listeners)
    for listener in told:
        listener.range_begins(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        for listener in told:
            listener.range_ends()
        pop()


@lru_cache(maxsize=1)
def nvtx_functions() -> tuple[Callable[[str], object], Callable[[], object]]:
    """(push, pop): PyTorch's own on CUDA, else those of the `nvtx` package, else two that do nothing.

    In a CPU build of PyTorch `torch.cuda.nvtx.range_push` raises an error.
    """
    if torch.cuda.is_available():
        return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    try:
        import nvtx  # type: ignore[import-untyped]
    except ImportError:
        return lambda _name: None, lambda: None
    return nvtx.push_range, nvtx.pop_range
