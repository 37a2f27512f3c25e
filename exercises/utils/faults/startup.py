"""Injectors of the faults that act before a training's first step: imports and weights.

`begin` starts them as soon as PyTorch is imported and the faults are known, so this module needs nothing else.
"""

from __future__ import annotations

import multiprocessing.process
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from exercises.utils.faults.moments import wrap
from harness.common.faults.fault import Fault, FaultLine, faults_file, parse_fault
from harness.observe.metrics import JsonLines, rank_of_process

BEFORE_STEPS = -1  # the step of what comes before the first one
PACKAGE = "site_plugins"  # no name that gives the fault away
MODULES = 200  # in it
FILES = 1 + MODULES


@dataclass(frozen=True)
class Startup:
    """A rank before its first step. in_exercise: of an exercise, not of a training of the user's own. until: closed
    where the first step begins."""

    run_dir: Path
    rank: int
    in_exercise: bool
    until: ExitStack

    def record(self, fault: Fault, ns: int, unix_ns: int) -> None:
        """Write that `fault` took `ns`, beginning at `unix_ns`."""
        lines = JsonLines(faults_file(self.run_dir, self.rank))
        lines.write(asdict(FaultLine(BEFORE_STEPS, fault.name, self.rank, ns, unix_ns)))
        lines.close()


_until_first_step = ExitStack()


def begin(faults: Iterable[Fault], run_dir: Path, in_exercise: bool) -> None:
    """Start those that act before the first step, which `first_step_begins` tells."""
    here = Startup(run_dir, rank_of_process()[0], in_exercise, _until_first_step)
    for fault in faults:
        if fault.name in STARTUP:
            STARTUP[fault.name](fault, here)


def begin_own(run_dir: Path, texts: Sequence[str]) -> None:
    """The same in a training of the user's own. texts: `NAME[,key=value…]`."""
    begin(map(parse_fault, texts), run_dir, in_exercise=False)


def first_step_begins() -> None:
    """End those that act before the first step alone, and record what they took."""
    _until_first_step.close()


# -- imports -----------------------------------------------------------------------------------------------------------


def import_slowly(fault: Fault, here: Startup) -> None:
    """Import a package of modules, each of whose files is opened late: the usual import, with another loader."""
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
    modules = [f"module_{number}" for number in range(MODULES)]
    top.mkdir(parents=True)
    (top / "__init__.py").write_text(f"from . import {', '.join(modules)}\n", encoding="ascii")
    for module in modules:
        text = f"NAME = {module!r}\n\n\ndef name() -> str:\n    return NAME\n"
        (top / f"{module}.py").write_text(text, encoding="ascii")


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


# -- weights -----------------------------------------------------------------------------------------------------------


def make_weights_slowly(fault: Fault, here: Startup) -> None:
    """Sleep for each tensor that becomes a parameter of a module."""
    if not fault.concerns(here.rank):
        return
    # In the exercises all ranks meet before they build the model; rank 0 of exercise 2 writes one before that.
    meets_first = here.in_exercise and rank_of_process()[1] > 1
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
    "slow-import": import_slowly,
    "slow-weights": make_weights_slowly,
}
