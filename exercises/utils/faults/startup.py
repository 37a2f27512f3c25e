"""Injectors of the faults that act before a training's first step: imports, the meeting of the ranks, data, weights.

`begin` starts them as soon as PyTorch is imported and the faults are known, so this module needs nothing else.
"""

from __future__ import annotations

import builtins
import inspect
import io
import multiprocessing.process
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from exercises.utils.faults.moments import wrap
from harness.common.faults import Fault, FaultLine, faults_file, parse_fault
from harness.observe.metrics import JsonLines, rank_of_process

BEFORE_STEPS = -1  # the step of what comes before the first one
PACKAGE = "site_plugins"  # no name that gives the fault away
BLOCK = 2**16  # bytes that one delay stands for
_CODE = (".py", ".pyc", ".so")


@dataclass(frozen=True)
class Startup:
    """A rank before its first step. data: the files that hold the data, None where they are not known. until: closed
    where the first step begins."""

    run_dir: Path
    rank: int
    data: Collection[Path] | None
    until: ExitStack

    def record(self, fault: Fault, ns: int, unix_ns: int, rank: int | None = None) -> None:
        """Write that `fault` took `ns`, beginning at `unix_ns`. rank: this one's, if it has become known."""
        number = self.rank if rank is None else rank
        write_line(self.run_dir, FaultLine(BEFORE_STEPS, fault.name, number, ns, unix_ns))


def write_line(run_dir: Path, line: FaultLine) -> None:
    """Record what a fault took where no training is known that would do so."""
    lines = JsonLines(faults_file(run_dir, line.rank))
    lines.write(asdict(line))
    lines.close()


_until_first_step = ExitStack()


def begin(faults: Iterable[Fault], run_dir: Path, data: Collection[Path] | None = None) -> None:
    """Start those that act before the first step, which `first_step_begins` tells."""
    here = Startup(run_dir, rank_of_process()[0], data, _until_first_step)
    for fault in faults:
        if fault.name in STARTUP:
            STARTUP[fault.name](fault, here)


def begin_own(run_dir: Path, texts: Sequence[str]) -> None:
    """The same in a training of the user's own, whose data is not known. texts: `NAME[,key=value…]`."""
    begin(map(parse_fault, texts), run_dir)


def first_step_begins() -> None:
    """End those that act before the first step alone, and record what they took."""
    _until_first_step.close()


# -- imports -----------------------------------------------------------------------------------------------------------

PARTS, MODULES = 10, 20  # packages in it, and modules in each of them
FILES = 1 + PARTS * (1 + MODULES)


def import_slowly(fault: Fault, here: Startup) -> None:
    """Import a tree of modules, each of whose files is opened late: the usual import, with another loader."""
    spawned = multiprocessing.process.parent_process() is not None  # a data worker, or a rank of a script that spawns
    if spawned or not fault.concerns(here.rank):
        return
    temporary = Path(tempfile.mkdtemp(prefix="plugins-"))
    folder = str(temporary / "site-packages")  # as of an installed package
    _write_package(temporary / "site-packages")
    hook = _late_files(folder, fault.ns() / 1e9 / FILES)
    sys.path_hooks.insert(0, hook)
    sys.path.insert(0, folder)
    unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
    try:
        __import__(PACKAGE)
    finally:
        ns = time.perf_counter_ns() - begin_ns
        sys.path.remove(folder)
        sys.path_hooks.remove(hook)
        for entry in [each for each in sys.path_importer_cache if each.startswith(folder)]:
            del sys.path_importer_cache[entry]
        shutil.rmtree(temporary)
    here.record(fault, ns, unix_ns)


def _write_package(folder: Path) -> None:
    top = folder / PACKAGE
    parts = [f"part_{number}" for number in range(PARTS)]
    modules = [f"module_{number}" for number in range(MODULES)]
    for path, inside in ((top, parts), *((top / part, modules) for part in parts)):
        path.mkdir(parents=True)
        (path / "__init__.py").write_text(f"from . import {', '.join(inside)}\n", encoding="ascii")
    for part in parts:
        for module in modules:
            text = f"NAME = {f'{part}.{module}'!r}\n\n\ndef name() -> str:\n    return NAME\n"
            (top / part / f"{module}.py").write_text(text, encoding="ascii")


def _late_files(folder: str, delay_s: float) -> Callable[[str], FileFinder]:
    class Late(SourceFileLoader):
        def get_data(self, path: str) -> bytes:
            if path.endswith(".py"):  # it first looks for a compiled file, and there is none
                time.sleep(delay_s)
            return super().get_data(path)

        def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
            """Keep no compiled file."""

    def hook(entry: str) -> FileFinder:
        if not entry.startswith(folder):
            raise ImportError(entry)
        return FileFinder(entry, (Late, [".py"]))

    return hook


# -- the meeting of the ranks ------------------------------------------------------------------------------------------


def come_late(fault: Fault, here: Startup) -> None:
    """Sleep before the process group is made, on the rank that has the fault."""

    def late(meet: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(*args: Any, **kwargs: Any) -> Any:
            rank = kwargs.get("rank", -1)  # a spawned process may know its rank by this alone
            rank = here.rank if rank < 0 else rank
            if fault.concerns(rank):
                unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
                time.sleep(fault.ns() / 1e9)
                here.record(fault, time.perf_counter_ns() - begin_ns, unix_ns, rank)
            return meet(*args, **kwargs)

        return delayed

    for owner in (dist, dist.distributed_c10d):
        wrap(owner, "init_process_group", late, here.until)


# -- data --------------------------------------------------------------------------------------------------------------


class ColdFile(io.FileIO):
    """A file that is read slowly where nobody has read it. warm: its blocks that were. record: told at its end how long
    it waited, and since when."""

    def __init__(self, path: str, warm: set[int], delay_s: float, record: Callable[[int, int], None]) -> None:
        super().__init__(path)
        self._warm, self._delay_s, self._record = warm, delay_s, record
        self._waited: list[tuple[int, int]] = []

    def readinto(self, buffer: Any, /) -> int | None:
        begin = self.tell()
        count = super().readinto(buffer)
        self._wait(begin, count or 0)
        return count

    def readall(self) -> bytes:
        begin = self.tell()
        read = super().readall()
        self._wait(begin, len(read))
        return read

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self.tell()
        read: bytes = super().read(-1 if size is None else size)
        self._wait(begin, len(read))
        return read

    def _wait(self, begin: int, count: int) -> None:
        cold = set(range(begin // BLOCK, -(-(begin + count) // BLOCK))) - self._warm
        if cold:
            self._warm |= cold
            unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
            time.sleep(len(cold) * self._delay_s)
            self._waited.append((time.perf_counter_ns() - begin_ns, unix_ns))

    def close(self) -> None:
        super().close()
        waited, self._waited = self._waited, []
        if waited:
            self._record(sum(ns for ns, _ in waited), waited[0][1])


def read_cold(fault: Fault, here: Startup) -> None:
    """Let Python open a data file as one that waits in its reads, also in data workers that are forked later."""
    if not fault.concerns(here.rank):
        return
    known = None if here.data is None else {os.path.realpath(path) for path in here.data}
    others = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/etc", "/usr", str(here.run_dir.resolve()))
    outside = tuple(f"{each}{os.sep}" for each in others)
    warm: dict[str, set[int]] = {}
    usual, signature = io.open, inspect.signature(io.open)

    def data_file(file: Any, mode: str) -> str | None:
        if not isinstance(file, (str, os.PathLike)) or mode.strip("bt") != "r":
            return None
        real = os.path.realpath(os.fsdecode(file))
        is_data = real in known if known is not None else not real.startswith(outside) and not real.endswith(_CODE)
        return real if is_data and Path(real).is_file() else None

    def opened(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(file, mode, buffering, *args, **kwargs).arguments
        real = data_file(file, mode) if bound.get("opener") is None else None
        if real is None:
            return usual(file, mode, buffering, *args, **kwargs)
        record = partial(here.record, fault)
        raw: Any = ColdFile(os.fsdecode(file), warm.setdefault(real, set()), fault.ns() / 1e9, record)
        if buffering == 0:
            return raw
        binary = io.BufferedReader(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
        as_text: dict[str, Any] = {name: bound.get(name) for name in ("encoding", "errors", "newline")}
        return binary if "b" in mode else io.TextIOWrapper(binary, **as_text)

    builtins.open = io.open = opened


# -- weights -----------------------------------------------------------------------------------------------------------


def make_weights_slowly(fault: Fault, here: Startup) -> None:
    """Sleep for each tensor that becomes a parameter of a module."""
    if not fault.concerns(here.rank):
        return
    # In the exercises all ranks meet before they build the model; rank 0 of exercise 2 writes one before that.
    meets_first = here.data is not None and rank_of_process()[1] > 1
    made: set[int] = set()
    took: list[tuple[int, int]] = []  # when each delay began, and how long it was

    def late(register: Callable[..., Any]) -> Callable[..., Any]:
        def registered(module: Any, name: str, parameter: Any) -> Any:
            # A tensor on `meta` has no values yet; one that two modules share is made once.
            is_new = parameter is not None and not parameter.is_meta and id(parameter) not in made
            if is_new and (dist.is_initialized() or not meets_first):
                made.add(id(parameter))
                unix_ns, begin_ns = time.time_ns(), time.perf_counter_ns()
                time.sleep(fault.ns() / 1e9)
                took.append((unix_ns, time.perf_counter_ns() - begin_ns))
            return register(module, name, parameter)

        return registered

    def finish() -> None:
        if took:
            here.record(fault, sum(ns for _, ns in took), took[0][0])

    here.until.callback(finish)
    wrap(torch.nn.Module, "register_parameter", late, here.until)


STARTUP: dict[str, Callable[[Fault, Startup], None]] = {
    "cold-cache": read_cold,
    "late-start": come_late,
    "slow-import": import_slowly,
    "slow-weights": make_weights_slowly,
}
