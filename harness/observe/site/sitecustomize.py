"""Python imports this at its start where its folder is on PYTHONPATH: it loads the observer beside a training.

A sitecustomize of the machine or the user still runs. Here and in what is loaded, an error only switches the observer
off: the training goes on. Any Python 3 may read this file.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def observe() -> None:
    """Load the observer under a name of its own: a script's package `harness` stays the script's."""
    told = os.environ.get("HARNESS_OBSERVE")
    if told and sys.version_info < (3, 8):
        if told.endswith("observe.json"):  # else it is switched off
            print("observer: off, because this Python is older than 3.8:", sys.executable, file=sys.stderr)
    elif told:
        load = SourceFileLoader("_harness_observer_start", str(FOLDER.parent / "start.py"))
        spec = importlib.util.spec_from_loader(load.name, load)
        if spec is not None:
            start = importlib.util.module_from_spec(spec)
            load.exec_module(start)
            start.begin()


def run_the_next() -> None:
    """The sitecustomize that Python would have imported without this folder."""
    others = [path for path in sys.path if Path(path).resolve() != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


try:
    observe()
except Exception as error:  # noqa: BLE001 - the edge between the observer and somebody's training
    print("observer: off, because", repr(error), file=sys.stderr)
run_the_next()
