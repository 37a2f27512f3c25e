"""checkpoint: the training stops to write the model's state, as trainings do, into one file that is replaced."""

from __future__ import annotations

from pathlib import Path

import torch

from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Write after the update of the parameters; the file is removed when the training ends."""
    path = target.run_dir / f"checkpoint-rank{target.rank}.pt"
    target.until.callback(path.unlink, missing_ok=True)
    target.when_due("updated", fault, lambda: _write(path, target))


def _write(path: Path, target: Target) -> None:
    unfinished = path.with_suffix(".unfinished")
    # Under ZeRO-3 a parameter is empty between its uses, and its shard is what this rank has.
    parameters = [parameter for model in target.models for parameter in model.parameters()]
    torch.save([getattr(each, "ds_tensor", each).detach() for each in parameters], unfinished)
    unfinished.replace(path)
