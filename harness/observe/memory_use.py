"""How much memory a rank uses after a step: on its device, on its host, and in the processes that load its data.

Read between two steps of somebody's training, so nothing here asks for more than a line of the kernel's.
"""

from __future__ import annotations

import multiprocessing.process
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

PROC = Path("/proc/self")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHARE = 1 / 50  # of a thread's time, for a look at the workers, of which the kernel walks through all pages
_LEAST_S = 0.1  # between two such looks
_AT_ONCE = 16  # looks that do not wait for their share: of a short training, too, it is known whether it grows


class OwnMemory:
    """Of this process. The file is opened once."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(PROC / "statm", os.O_RDONLY | os.O_CLOEXEC)

    def host_bytes(self) -> int | None:
        """Resident, without the pages of files and of shared memory; None: the system does not say it."""
        if self._file is None:
            return None
        _, resident, shared, *_ = os.pread(self._file, 200, 0).split()
        return (int(resident) - int(shared)) * _PAGE

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
        self._again_s, self._looks = 0.0, 0

    def now(self) -> dict[str, int | None]:
        """By the fields of a step's line. The memory of workers is left out between two looks at it."""
        found: dict[str, int | None] = {"files": None, "threads": None}
        with suppress(OSError):
            found = {"files": sum(1 for _ in (PROC / "fd").iterdir()), "threads": (PROC / "task").stat().st_nlink - 2}
        if time.monotonic() >= self._again_s:
            begin_s = time.thread_time()
            found["workers_memory_bytes"] = workers_bytes()
            share_s = (time.thread_time() - begin_s) / _SHARE if self._looks > _AT_ONCE else 0.0
            self._looks += 1
            self._again_s = time.monotonic() + max(_LEAST_S, share_s)
        return found


def workers_bytes() -> int | None:
    """Of the processes that this one has made for its data: each page is divided among those that share it. None: it
    has none, or the system does not say it."""
    module: Any = multiprocessing.process
    sizes = [_own_share(child.pid) for child in list(module._children) if child.pid is not None]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _own_share(pid: int) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) * 1024
    return None
