"""Many traces read and reduced, each in a worker process if that is faster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.common.system.programs import usable_cores
from harness.traces.errors import TraceError
from harness.traces.open import open_trace
from harness.traces.pool import KILLED, process_pool
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import Trace

if TYPE_CHECKING:
    from concurrent.futures import Future

Reduced = TypeVar("Reduced")

# Memory while reading, per byte of file; a compressed file holds about 15 times its size. Rounded up from
# benchmarks/bench_read_kineto.py and bench_read_nsys.py.
_BYTES_PER_BYTE = {".json.gz": 8.0, ".sqlite.gz": 12.0, ".json": 0.5, ".sqlite": 2.0, ".nsys-rep": 8.0, ".qdrep": 8.0}
_BASE_BYTES = 80 << 20
_WORTH_A_POOL_BYTES = 1 << 20  # below this a pool takes longer to start than it saves


def map_traces(
    paths: Sequence[Path | str],
    function: Callable[[Trace], Reduced],
    *,
    workers: int | None = None,
    progress: OnProgress = silent,
) -> list[Reduced | TraceError]:
    """`function` of each trace, in the order of `paths`; a file that cannot be read gives its TraceError.

    `function` runs in the worker that read the trace and must be importable there (no lambda); its result
    is pickled. `workers` is by default one per usable core; they are fewer where half of the free memory is too small.
    """
    files = [Path(path) for path in paths]
    sizes = [_size(file) for file in files]
    wanted = workers if workers is not None else usable_cores()
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = worker_count(files, wanted, free_bytes // 2)
    apply = partial(_apply, function)
    if count == 1 or (workers is None and sum(sizes) < _WORTH_A_POOL_BYTES):
        return _in_turn(files, sizes, apply, progress)
    return _in_pool(files, sizes, apply, count, progress)


def worker_count(files: Sequence[Path], wanted: int, memory_budget_bytes: int) -> int:
    """How many traces may be read at once, at least one."""
    largest = max(map(memory_bytes, files), default=1)
    return max(1, min(wanted, len(files), memory_budget_bytes // largest))


def memory_bytes(file: Path) -> int:
    """About how much memory reading `file` takes."""
    factor = next((f for suffix, f in _BYTES_PER_BYTE.items() if file.name.endswith(suffix)), 1.0)
    return _BASE_BYTES + int(_size(file) * factor)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _in_turn(
    files: list[Path], sizes: list[int], apply: Callable[..., Reduced | TraceError], progress: OnProgress
) -> list[Reduced | TraceError]:
    def shown(before_bytes: int) -> OnProgress:
        return lambda done_bytes, _: progress(before_bytes + done_bytes, sum(sizes))

    return [apply(file, shown(sum(sizes[:number]))) for number, file in enumerate(files)]


def _apply(function: Callable[[Trace], Reduced], file: Path, progress: OnProgress = silent) -> Reduced | TraceError:
    try:
        trace = open_trace(file, progress=progress)
    except TraceError as error:
        return error
    return function(trace)


def _in_pool(
    files: list[Path], sizes: list[int], apply: Callable[[Path], Reduced | TraceError], count: int, progress: OnProgress
) -> list[Reduced | TraceError]:
    """The largest files first, so that no worker still reads a large file while the others are idle."""
    # These take longer to import than one small trace does to read.
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    results: dict[int, Reduced | TraceError] = {}
    with process_pool(count) as pool:
        jobs: dict[Future[Reduced | TraceError], int] = {}
        for number in sorted(range(len(files)), key=lambda number: -sizes[number]):
            try:
                jobs[pool.submit(apply, files[number])] = number
            except BrokenProcessPool:  # a worker died while there were still files to hand out
                results[number] = TraceError(files[number], KILLED)
        for job in as_completed(jobs):
            number = jobs[job]
            try:
                results[number] = job.result()
            except BrokenProcessPool:
                results[number] = TraceError(files[number], KILLED)
            progress(sum(sizes[number] for number in results), sum(sizes))
    return [results[number] for number in range(len(files))]
