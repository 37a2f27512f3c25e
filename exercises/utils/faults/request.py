"""The faults of a training script: of its command line, or sealed in the run of a mystery; refused if they cannot
work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.common.errors import RequestError
from harness.common.faults import Fault, Setup, misfits, parse_fault, wrong_device
from harness.common.mystery import Secret, sealed_file


def fault(text: str) -> Fault:
    """`NAME[,key=value…]`, as an argparse type."""
    try:
        return parse_fault(text)
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def find(faults: Sequence[Fault], name: str) -> Fault | None:
    """The fault of that name, if it was asked for."""
    return next((fault for fault in faults if fault.name == name), None)


def sealed_faults(run_dir: Path) -> list[Fault]:
    """The faults of a mystery; none in other runs. Raises RequestError: their file was changed."""
    path = sealed_file(run_dir)
    if not path.is_file():
        return []
    try:
        return [parse_fault(text) for text in Secret.open(path.read_text(encoding="utf-8")).faults]
    except (ValueError, RequestError):
        raise RequestError(f"{path}: it was changed: start a new mystery") from None


def refuse_misfits(faults: Sequence[Fault], setup: Setup, device: str) -> None:
    """Raises RequestError: a fault cannot work in this training on `device` (cpu or cuda)."""
    sentences = [*misfits(faults, setup), *wrong_device(faults, device)]
    if sentences:
        raise RequestError("; ".join(sentences))
