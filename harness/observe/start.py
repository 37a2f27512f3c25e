"""Where the observer begins: it waits until the training imports PyTorch, then places its hooks.

Loaded by site/sitecustomize.py in every Python process of a job, most of which never train: until then it costs one
look at each module's name. An error in the observer switches it off and is said once; none reaches the script.
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
BY_ITSELF, OFF = "module", ("off", "0", "no")  # as harness/observe/job_folder.py has them


def begin() -> None:
    """Wait for PyTorch, if this process is told to observe."""
    told = os.environ["HARNESS_OBSERVE"]
    if told in OFF:
        return
    asked = None if told == BY_ITSELF else json.loads(Path(told).read_text(encoding="utf-8"))
    finder = AfterImport()
    finder.after("torch", lambda _module: _place(finder, Path(told).parent, asked))
    sys.meta_path.insert(0, finder)


def _place(finder: AfterImport, run_dir: Path, asked: dict[str, Any] | None) -> None:
    """asked: as observe.json has it; None: there is no run yet."""
    with ours():
        hooks = importlib.import_module("harness.observe.hooks")
        by_itself = importlib.import_module("harness.observe.by_itself") if asked is None else None
    if by_itself is not None:
        hooks.place(finder.after, by_itself.run_folder, by_itself.settings(), ours)
    else:
        hooks.place(finder.after, lambda: run_dir, asked, ours)


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

    def after(self, name: str, act: Callable[[types.ModuleType], object]) -> None:
        """Call `act` when `name` is imported; now, if it is."""
        if name in sys.modules:
            quietly(act, sys.modules[name])
        else:
            self._waiting[name] = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        act = self._waiting.pop(name, None)
        if act is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(name, path, target) if find else None
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
