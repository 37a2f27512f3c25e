"""Where the observer begins: it waits until the training imports PyTorch, then places its hooks. A rank's time is
recorded from here on.

Loaded by site/sitecustomize.py in every Python process of a job, most of which never train: until PyTorch is imported
these cost one look at each module's name. An error in the observer switches it off and is said once; none reaches the
script.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "exercises")
OFF = ("off", "0", "no")  # as harness/common/run_folder/job_folder.py has it
_FIRST = "HARNESS_OBSERVED_FIRST"  # the process that has begun first, for those below it


def begin() -> None:
    """Wait for PyTorch, if this process is told to observe."""
    told = os.environ["HARNESS_OBSERVE"]
    if told in OFF:
        return
    finder = AfterImport()
    run_dir = Path(told).parent
    asked = json.loads(Path(told).read_text(encoding="utf-8"))
    if asked.get("job") not in (None, os.environ.get("SLURM_JOB_ID_HET_GROUP_0") or os.environ.get("SLURM_JOB_ID")):
        return  # a job that the observed one submitted has inherited its variables
    finder.after("torch", lambda _module: _place(finder, run_dir, asked))
    if os.environ.get("RANK", "").isdecimal() or _is_only_process(asked):
        _record_time(run_dir)
    else:
        finder.before("torch", lambda: _record_time(run_dir))
    sys.meta_path.insert(0, finder)


def _is_only_process(asked: dict[str, Any]) -> bool:
    """Whether this is the first process of a training that has one rank, which no launcher starts."""
    first = os.environ.setdefault(_FIRST, str(os.getpid())) == str(os.getpid())
    return first and asked.get("launcher") == "python"


def _record_time(run_dir: Path) -> None:
    """From now on it is recorded where the job's time goes."""
    with ours():
        importlib.import_module("harness.observe.job_time").begin(run_dir)


def _place(finder: AfterImport, run_dir: Path, asked: dict[str, Any]) -> None:
    """run_dir, asked: the run's folder and what its observe.json has."""
    with ours():
        hooks = importlib.import_module("harness.observe.hooks")
    hooks.place(finder.after, run_dir, asked, ours)


@contextmanager
def ours() -> Iterator[None]:
    """Inside, the packages of this checkout can be imported; afterwards their names are the script's again.

    The observer keeps what it has imported, and a package of such a name that the script has imported comes back.
    """
    kept = {name: sys.modules.pop(name) for name in _named_as_ours()}
    sys.modules.update(_ours)
    for name in PACKAGES:
        if name not in sys.modules:
            package = types.ModuleType(name)  # the packages' own files need a newer Python
            package.__path__ = [str(CHECKOUT / name)]
            sys.modules[name] = package
    try:
        yield
    finally:
        _ours.update({name: sys.modules.pop(name) for name in _named_as_ours()})
        sys.modules.update(kept)


_ours: dict[str, types.ModuleType] = {}


def _named_as_ours() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] in PACKAGES]


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module, once that is imported as a whole."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[types.ModuleType], object]] = {}
        self._first: dict[str, Callable[[], object]] = {}

    def before(self, name: str, act: Callable[[], object]) -> None:
        """Call `act` when the import of `name` begins."""
        self._first[name] = act

    def after(self, name: str, act: Callable[[types.ModuleType], object]) -> None:
        """Call `act` when `name` is imported; now, if it is."""
        if name in sys.modules:
            quietly(act, sys.modules[name])
        else:
            self._waiting[name] = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, module_type: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        first, act = self._first.pop(name, None), self._waiting.pop(name, None)
        if first is not None:
            quietly(first)
        if act is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(name, path, module_type) if find else None
            if spec is not None:
                if spec.loader is not None:
                    _tell(spec.loader, act)
                return spec
        return None


def _tell(loader: Any, act: Callable[[types.ModuleType], object]) -> None:
    load = loader.exec_module

    def exec_module(module: types.ModuleType) -> None:
        load(module)
        quietly(act, module)

    loader.exec_module = exec_module


def quietly(act: Callable[..., object], *arguments: object) -> None:
    """Call it; an error is said, and the script goes on."""
    try:
        act(*arguments)
    except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
        print(f"observer: off, because {error!r}", file=sys.stderr)
