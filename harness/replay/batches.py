"""What-ifs about batches: accumulation, the micro-batch, and micro-batches in a pipeline."""

from __future__ import annotations

import numpy as np

from harness.analysis.process.phases import PHASES
from harness.replay.edits import Edit, Edited, in_pairs
from harness.replay.scene import HOST_SORTS, Scene, slots
from harness.replay.sorts import BACKWARD, FORWARD, OPTIMIZER, SENDING, Sort
from harness.replay.suspect import settled

NEVER = -(10**15)  # an arc of this length makes nothing wait
_WORK = (Sort.HOST_WORK, Sort.HOST_PRODUCT, Sort.DEVICE_WORK, Sort.DEVICE_PRODUCT, Sort.DEVICE_COPY)


def accumulated(k: int) -> Edit:
    """Gradients reduced, and parameters updated, in every k-th step only. For all-reduces of the backward pass alone:
    what sharded parameters and optimizers send does not depend on it in the same way."""

    def edit(scene: Scene) -> Edited | None:
        job = scene.job
        steps = job.step_begin.shape[1]
        reduces = {(call.kind, PHASES[call.phase]) for call in job.calls}
        if reduces != {("all_reduce", "backward")} or steps - settled(steps) < k or job.alone:
            return None
        counted = in_pairs(steps, k, settled(steps))
        quiet = np.arange(steps) % k != (steps - 1) % k
        factors = job.unchanged()
        factors[:, slots((*HOST_SORTS,), OPTIMIZER)] = 0
        lengths = job.scaled(factors, quiet)
        lengths[job.messages.arc[np.append(quiet, False)[job.step[job.messages.arc]]]] = NEVER
        return Edited(lengths, counted)

    return edit


def larger(scene: Scene) -> Edited | None:
    """Forward and backward with twice the work between the same gaps; one optimizer step and its messages for both."""
    factors = scene.job.unchanged()
    for phase in (FORWARD, BACKWARD):
        factors[:, slots((Sort.HOST_WORK, Sort.HOST_PRODUCT), phase)] = 2
    if scene.of((Sort.DEVICE_WORK,)).any():
        factors[:, slots(_WORK[2:])] = 2
    return Edited(scene.job.scaled(factors), per=2)


def more_in_pipeline(scene: Scene) -> Edited | None:
    """As many micro-batches again, each for as long as the busiest stage takes for one.

    Source of the schedule: Narayanan et al., Efficient large-scale language model training on GPU clusters using
    Megatron-LM, 2021, section 2.2."""
    if not any(call.kind == "send" for call in scene.job.calls):
        return None
    phases = (FORWARD, BACKWARD, SENDING)
    busy = sum(scene.of(HOST_SORTS, phase).mean(axis=1) for phase in phases)
    return Edited(scene.job.lengths, per=2, extra_ns=float(np.max(busy)))
