"""How much memory a rank uses after a step: on its device, on its host, and in the processes that load its data.

Read between two steps of somebody's training, so nothing here asks for more than a line of the kernel's.
"""

from __future__ import annotations

import ctypes
import multiprocessing.process
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

PROC = Path("/proc/self")
Seen = TypeVar("Seen")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# Of a thread's time: of the workers the kernel walks through all pages, and the C library through all that is free.
_SHARE_OF_WORKERS, _SHARE_OF_FREE = 1 / 50, 1 / 1000
_LEAST_S = 0.1  # between two such looks
# Looks that do not wait for their share if they are quick: of a short training, too, it is known whether it grows.
_AT_ONCE, _QUICK_S = 16, 0.02


class RareLook:
    """When a look is due that takes long. share: of its thread's time."""

    def __init__(self, share: float) -> None:
        self._share, self._again_s, self._looks = share, 0.0, 0

    def now(self, look: Callable[[], Seen | None]) -> Seen | None:
        """What it sees; None: it is not due."""
        if time.monotonic() < self._again_s:
            return None
        begin_s = time.thread_time()
        found = look()
        took_s = time.thread_time() - begin_s
        self._looks += 1
        waits = self._looks > _AT_ONCE or took_s > _QUICK_S
        self._again_s = time.monotonic() + max(_LEAST_S, took_s / self._share if waits else 0.0)
        return found


class _MallocState(ctypes.Structure):
    """What mallinfo2(3) of glibc returns, from 2.33 on."""

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


_FREE = 8  # of the numbers: `fordblks`
_malloc_state: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _malloc_state is not None:
    _malloc_state.restype = _MallocState


class OwnMemory:
    """Of this process. The file is opened once."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._free = RareLook(_SHARE_OF_FREE)
        with suppress(OSError):
            self._file = os.open(PROC / "statm", os.O_RDONLY | os.O_CLOEXEC)

    def host_bytes(self) -> int | None:
        """Resident, without the pages of files and of shared memory; None: the system does not say it."""
        if self._file is None:
            return None
        _, resident, shared, *_ = os.pread(self._file, 200, 0).split()
        return (int(resident) - int(shared)) * _PAGE

    def free_bytes(self) -> int | None:
        """Of those, what the program has freed and the C library keeps; None: it does not say it, or said it lately."""
        return None if _malloc_state is None else self._free.now(lambda: int(_malloc_state().numbers[_FREE]))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None


def device_bytes() -> int | None:
    """Of the tensors on this process's GPU; None without one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return torch.cuda.memory_allocated()


def memory_now() -> Callable[[], int | None]:
    """What tells how much this process uses: of its GPU, else of the host."""
    own = OwnMemory()
    return lambda: device_bytes() or own.host_bytes()


class CountsBeside:
    """What is not counted in each step, as it takes longer: open files, threads, and the workers' memory."""

    def __init__(self) -> None:
        self._workers = RareLook(_SHARE_OF_WORKERS)

    def now(self) -> dict[str, int | None]:
        """By the fields of a step's line. The memory of workers is left out between two looks at it."""
        found: dict[str, int | None] = {"files": None, "threads": None}
        with suppress(OSError):
            found = {"files": sum(1 for _ in (PROC / "fd").iterdir()), "threads": (PROC / "task").stat().st_nlink - 2}
        if (workers := self._workers.now(workers_memory)) is not None:
            found |= {"workers_memory_bytes": workers.share, "workers_mapped_bytes": workers.mapped}
        return found


class WorkersMemory(NamedTuple):
    """Of the processes that a rank has made for its data, without the pages of files. share: each page is divided among
    those that share it. mapped: each counts whole, so that it grows by what they allocate and not by what they or the
    rank write to pages that they shared."""

    share: int
    mapped: int


def workers_memory() -> WorkersMemory | None:
    """None: it has none, or the system does not say it."""
    module: Any = multiprocessing.process
    sizes = [_of_process(child.pid) for child in list(module._children) if child.pid is not None]
    known = [size for size in sizes if size is not None]
    return WorkersMemory(sum(each.share for each in known), sum(each.mapped for each in known)) if known else None


def _of_process(pid: int) -> WorkersMemory | None:
    with suppress(OSError, ValueError, KeyError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        found = {words[0]: 1024 * int(words[1]) for line in text.splitlines()[1:] if (words := line.split())}
        return WorkersMemory(found["Pss_Anon:"], found["Anonymous:"])
    return None
