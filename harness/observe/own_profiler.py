"""A script that records with torch.profiler itself is left alone: two recordings at once are an error. Its traces are
kept as the run's."""

from __future__ import annotations

import functools
import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from harness.observe import capture
from harness.observe.watch import Watch

LEFT_ALONE = "the script records with torch.profiler itself, so nothing else is recorded; its traces are the run's"


def watch_own_profiler(watch: Watch) -> None:
    """Notice a profiler of the script's, and keep a copy of its first trace."""
    profiler: Any = torch.profiler.profiler._KinetoProfile
    make, export = profiler.__init__, profiler.export_chrome_trace

    @functools.wraps(make)
    def made(own: Any, *arguments: Any, **named: Any) -> None:
        if not capture.making_ours:
            watch.leave_alone(LEFT_ALONE)
        make(own, *arguments, **named)

    @functools.wraps(export)
    def exported(own: Any, path: Any, *arguments: Any, **named: Any) -> Any:
        result = export(own, path, *arguments, **named)
        if watch.own_profiler and watch.rank >= 0:
            _keep(Path(os.fspath(path)), watch.trace_file)
        return result

    profiler.__init__ = made
    profiler.export_chrome_trace = exported


def _keep(source: Path, target: Path) -> None:
    """A copy, compressed if it is not. The first one stays."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".unfinished-{target.name}")
    with source.open("rb") as read:
        if source.suffix == ".gz":
            with unfinished.open("wb") as write:
                shutil.copyfileobj(read, write)
        else:
            with gzip.open(unfinished, "wb", compresslevel=3) as packed:
                shutil.copyfileobj(read, packed)
    unfinished.replace(target)
