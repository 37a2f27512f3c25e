"""What the processes of a training do together beside their steps: check that they train one model, and write
checkpoints.

After a wrong launch the processes can train separately and still exit with 0.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exercises.utils.arguments import TrainingArguments
from harness.common.errors import WorkError
from harness.observe.metrics import rank_of_process
from harness.observe.ranges import annotate

# Kept to the end of the process: else gloo's thread may free the tensors of the last message, for which it needs the
# interpreter's lock, while the process group ends, which holds that lock and waits for the thread.
_SENT: list[Any] = []


def require_every_process(seen: int) -> None:
    """Raises WorkError: the framework sees another number of processes than the launcher started."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if seen != started:
        raise WorkError(
            f"the launcher started {started} processes but training sees {seen}: each would train alone. "
            "On a CPU, launch with `distributed_type: MULTI_GPU` and set ACCELERATE_USE_CPU=true"
        )


class SynchronisationCheck:
    """Checks once, after an optimizer step, that all ranks hold equal parameters and that they have changed.

    The check gathers one number from every rank, which must all do so after the same step. So it runs after the first
    step of `wait` or `warmup` that updates, else at the end: for each rank the clock begins and ends a recording in
    another step. Nor does it run in a profiled step, where the trace would count it as the training's communication.
    Without parameters there is nothing to check.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._initial = checksum(self._parameters) if self._parameters else None
        self._due = False
        self._done = False

    def after_update(self, phase: str) -> None:
        """An optimizer step has just been done in `phase` of the profiling window."""
        self._due = True
        if phase in ("wait", "warmup"):
            self.finish()

    def finish(self) -> None:
        """Check now, unless the check is done or no optimizer step was. All ranks call it. Raises WorkError: the
        parameters differ between ranks, or none has changed."""
        if self._done or not self._due or self._initial is None:
            return
        self._done = True
        now = checksum(self._parameters)
        values = [torch.zeros_like(now) for _ in range(dist.get_world_size() if dist.is_initialized() else 0)]
        if values:
            _SENT.append(dist.all_gather(values, now, async_op=True))
            _SENT[-1].wait()
        if any(not torch.equal(other, values[0]) for other in values):
            listed = ", ".join(f"rank {rank}: {other.item()}" for rank, other in enumerate(values))
            raise WorkError(f"parameters differ between ranks: the processes do not synchronise ({listed})")
        if torch.equal(now, self._initial):
            raise WorkError("no parameter changed in an optimizer step: nothing is being trained")


def checksum(parameters: Iterable[Tensor]) -> Tensor:
    """The sum of all parameters' bits as integers (one int64): exact, whatever the order of summation."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    parts = [p.detach().view(bits[p.element_size()]).sum(dtype=torch.int64) for p in parameters]
    return torch.stack(parts).sum()


def save_if_due(arguments: TrainingArguments, step: int, write: Callable[[Path], object]) -> None:
    """After `step` (the first is 0), on every rank: let `write` fill a folder, if `--checkpoint-every` says so. The
    newest checkpoint stays."""
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
