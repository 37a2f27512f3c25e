"""The file `memory/rank<R>.json` of a run: who held a rank's memory, step by step. Written by a training with
`--memory-snapshot`, read by the harness. Knows nothing of the measuring."""

from __future__ import annotations

from typing import NamedTuple

from harness.common.display import palette

VERSION = 1
MOST_POINTS = 600  # of the timeline: a screen does not show more
MOST_HOLDERS = 40  # lines of who held most; the rest is summed up
MOST_STEPS = 10_000


class MemoryUse(NamedTuple):
    """What memory is for: in words, and its colour. Blue tones stay through all steps, warm ones do not."""

    meaning: str
    color: str


# As the plan names them where the plan knows them; in the order in which a page stacks them.
CATEGORIES = {
    "weights": MemoryUse("parameters of the model, whole or this rank's shard", "#1f6fb2"),
    "gradients": MemoryUse("of the parameters", "#56b4e9"),
    "optimizer": MemoryUse("its state, and its copy of the weights if it has one", "#7d6bc4"),
    "activations": MemoryUse("allocated in forward and kept for backward", palette.MEMORY),
    "buffers": MemoryUse("for communication, such as DDP's buckets", palette.COMMUNICATION),
    "inputs": MemoryUse("batches", "#c9a800"),
    "temporary": MemoryUse("freed in the same part of the step", "#cc79a7"),
    "other": MemoryUse(
        "allocated before the first step, or by code that the recording does not see; its use is not known", "#9aa0a6"
    ),
}
