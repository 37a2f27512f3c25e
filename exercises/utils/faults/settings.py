"""The faults that a training script asks for, and what it must know of them when it is built: pinned memory,
buckets, layers. A fault that cannot work is refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.common.errors import RequestError
from harness.common.faults.fault import Fault, Setup, layers_at_the_end, misfits, parse_fault, wrong_device
from harness.common.faults.mystery import hidden_faults, hidden_file, is_mystery


def fault(text: str) -> Fault:
    """`NAME[,key=value…]`, as an argparse type."""
    try:
        return parse_fault(text)
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def find(faults: Sequence[Fault], name: str) -> Fault | None:
    return next((fault for fault in faults if fault.name == name), None)


def mystery_faults(run_dir: Path) -> list[Fault]:
    """The faults of a mystery; none in other runs. Raises RequestError: their file was changed."""
    if not is_mystery(run_dir):
        return []
    try:
        faults = [parse_fault(text) for text in hidden_faults(run_dir)]
    except RequestError:
        faults = []
    if not faults:
        raise RequestError(f"{hidden_file(run_dir)}: it was changed: start a new mystery")
    return faults


def refuse_misfits(faults: Sequence[Fault], setup: Setup, device_type: str) -> None:
    """Raises RequestError: a fault cannot work in this training on `device_type` (cpu or cuda)."""
    sentences = [*misfits(faults, setup), *wrong_device(faults, device_type)]
    if sentences:
        raise RequestError("; ".join(sentences))


def pins_batches(faults: Sequence[Fault], usual: bool) -> bool:
    """Whether batches are pinned and copied without waiting; without the fault `usual`."""
    return usual and find(faults, "pageable") is None


def bucket_bytes(faults: Sequence[Fault], usual_bytes: int | None) -> int | None:
    """The size of a bucket of gradients in bytes; without the fault `usual_bytes`, None for the framework's own."""
    fault = find(faults, "small-buckets")
    return usual_bytes if fault is None else 1024 * fault.count("kb")


def ddp_buckets(faults: Sequence[Fault]) -> dict[str, float]:
    """The same as DDP's own setting; none without the fault."""
    size_bytes = bucket_bytes(faults, None)
    return {} if size_bytes is None else {"bucket_cap_mb": size_bytes / 2**20}


def uneven_layers(faults: Sequence[Fault], layers: int, stages: int) -> dict[str, int]:
    """Megatron's setting of the layers of the first or the last stage; without the fault none: all have the same."""
    fault = find(faults, "uneven-stages")
    if fault is None:
        return {}
    name = f"num_layers_in_{fault.values['stage']}_pipeline_stage"
    return {name: layers_at_the_end(fault, layers, stages)}
