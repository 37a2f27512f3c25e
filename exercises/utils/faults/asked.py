"""The faults of a training script's command line: parsed, and refused where they cannot work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from harness.common.errors import RequestError
from harness.common.faults import Fault, Setup, misfits, parse_fault, wrong_device


def fault(text: str) -> Fault:
    """`NAME[,key=value…]`, as an argparse type."""
    try:
        return parse_fault(text)
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def find(faults: Sequence[Fault], name: str) -> Fault | None:
    """The fault of that name, if it was asked for."""
    return next((fault for fault in faults if fault.name == name), None)


def refuse_misfits(faults: Sequence[Fault], setup: Setup, device: str) -> None:
    """Raises RequestError: a fault cannot work in this training on `device` (cpu or cuda)."""
    sentences = [*misfits(faults, setup), *wrong_device(faults, device)]
    if sentences:
        raise RequestError("; ".join(sentences))
