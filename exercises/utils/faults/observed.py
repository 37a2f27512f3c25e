"""Injects faults into a training that knows nothing of them: the observer tells the moments of its steps."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from exercises.utils.faults.inject import injector_of
from exercises.utils.faults.moments import Moments
from exercises.utils.faults.records import lines_of
from exercises.utils.faults.target import Target
from harness.common.faults import parse_fault


def begin(run_dir: Path, rank: int, model: Any, texts: Sequence[str]) -> Moments:
    """Start every fault in which this rank takes part; returns the moments, which the caller announces.

    texts: `NAME[,key=value…]`. model: the module that is trained, or None where it is not known.
    """
    moments, until = Moments(), ExitStack()
    lines = lines_of(run_dir, rank)
    until.callback(lines.close)
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")  # type: ignore[no-untyped-call]
    target = Target(rank, device, run_dir, [] if model is None else [model], moments, lines, until)
    for fault in map(parse_fault, texts):
        if fault.starts_on(rank):
            injector_of(fault)(fault, target)
    atexit.register(until.close)
    return moments
