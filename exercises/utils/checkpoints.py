"""Checkpoints of a training: `--checkpoint-every N` writes one after each N-th step and keeps the newest.

How the state is written is the exercise's affair; here is where, when, and that all ranks wait for the last one's part.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from exercises.utils.arguments import TrainingArguments
from harness.observe.metrics import rank_of_process
from harness.observe.ranges import annotate


def save_if_due(arguments: TrainingArguments, step: int, write: Callable[[Path], object]) -> None:
    """After `step` (the first is 0), on every rank: let `write` fill a folder, if it is the turn of a checkpoint."""
    every = arguments.checkpoint_every
    if every is None or (step + 1) % every:
        return
    folder = arguments.run_dir / "checkpoints" / f"step_{step + 1}"
    with annotate("checkpoint"):
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
        if dist.is_initialized():
            dist.barrier()  # only then has every rank written its part
        if rank_of_process()[0] == 0:
            for older in folder.parent.glob("step_*"):
                if older != folder:
                    shutil.rmtree(older)
