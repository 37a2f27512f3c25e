"""Named ranges around the parts of training, for every profiler.

Each range is written twice: as NVTX, which nsys records, and as `record_function`, which torch.profiler records; so are
those that a script marks with `torch.cuda.nvtx`. Without a profiler a range costs microseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import torch

PYTORCH_NVTX: Any = getattr(torch.cuda.nvtx, "_nvtx", None)  # what its range_push calls; fails in a build without CUDA


class RangeListener(Protocol):
    """Is told of every range, also without a profiler."""

    def range_begins(self, name: str) -> None:
        """A range begins inside those that are open."""

    def range_ends(self) -> None:
        """The innermost range ends."""


listeners: list[RangeListener] = []


class OpenRanges(threading.local):
    """The ranges that are open in each thread. nvtx_push, nvtx_pop: write them as NVTX."""

    def __init__(self, nvtx_push: Callable[[str], object], nvtx_pop: Callable[[], object]) -> None:
        self._nvtx_push, self._nvtx_pop = nvtx_push, nvtx_pop
        self._open: list[tuple[Any, list[RangeListener]]] = []

    def push(self, name: str) -> Any:
        """A range begins. Returns what NVTX's function does: how many were open."""
        depth = self._nvtx_push(name)
        told = list(listeners)
        for listener in told:
            listener.range_begins(name)
        self._open.append((begun_record(name), told))
        return depth

    def pop(self) -> Any:
        """The innermost range ends. Returns what NVTX's function does."""
        record, told = self._open.pop() if self._open else (None, [])
        if record is not None:
            record.__exit__(None, None, None)
        for listener in told:
            listener.range_ends()
        return self._nvtx_pop()


@lru_cache(maxsize=1)
def own_ranges() -> OpenRanges:
    """Those of the harness's own code."""
    return OpenRanges(*nvtx_functions())


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark the time spent inside as a range called `name`."""
    ranges = own_ranges()
    ranges.push(name)
    try:
        yield
    finally:
        ranges.pop()


def records(for_nsys: bool = False) -> bool:
    """Whether torch.profiler records this thread now. for_nsys: or nsys may, which PyTorch cannot say."""
    return for_nsys or bool(torch._C._autograd._profiler_enabled())


class Mark:
    """A range for every profiler, from its making to `end`."""

    __slots__ = ("_pop", "_record")

    def __init__(self, name: str) -> None:
        push, self._pop = nvtx_functions()
        push(name)
        self._record = begun_record(name)

    def end(self) -> None:
        if self._record is not None:
            self._record.__exit__(None, None, None)
        self._pop()


def begun_record(name: str) -> Any:
    """A range for torch.profiler, which begins now and ends with its `__exit__`; None: it does not record."""
    if not records():
        return None
    record: Any = torch.profiler.record_function(name)
    record.__enter__()
    return record


@lru_cache(maxsize=1)
def nvtx_functions() -> tuple[Callable[[str], object], Callable[[], object]]:
    """(push, pop): PyTorch's own on CUDA, else those of the `nvtx` package, else two that do nothing.

    In a CPU build of PyTorch `torch.cuda.nvtx.range_push` raises an error.
    """
    if torch.cuda.is_available():
        if PYTORCH_NVTX is None:
            return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
        return PYTORCH_NVTX.rangePushA, PYTORCH_NVTX.rangePop
    package = nvtx_package()
    return (lambda _name: None, lambda: None) if package is None else (package.push_range, package.pop_range)


def nvtx_package() -> Any:
    """The `nvtx` package, by which nsys sees ranges without CUDA; None: it is not installed."""
    try:
        import nvtx  # type: ignore[import-untyped]
    except ImportError:
        return None
    return nvtx


class ScriptNvtx:
    """Stands for NVTX's functions in `torch.cuda.nvtx`: the ranges that a script pushes there become `ranges`. All else
    stays PyTorch's."""

    def __init__(self, ranges: OpenRanges) -> None:
        self.rangePushA, self.rangePop = ranges.push, ranges.pop  # as PyTorch calls them

    def __getattr__(self, name: str) -> Any:
        return getattr(PYTORCH_NVTX, name)


def watch_script_ranges() -> None:
    """From here on torch.profiler, which does not see NVTX, also records the ranges of a script. In a build without
    CUDA they stay the error that they are without us."""
    if hasattr(torch._C, "_nvtx"):
        set_nvtx(ScriptNvtx(OpenRanges(PYTORCH_NVTX.rangePushA, PYTORCH_NVTX.rangePop)))


def set_nvtx(functions: Any) -> None:
    """From here on `torch.cuda.nvtx` calls these, however a script has imported it."""
    torch.cuda.nvtx._nvtx = functions  # type: ignore[attr-defined]
