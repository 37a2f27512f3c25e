"""Rules about steady losses, present in every step, which a change of the experiment improves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from harness.replay.network import larger_buckets, small_buckets
from harness.replay.scene import Scene, slots
from harness.replay.sorts import BACKWARD, FORWARD, OPTIMIZER, Sort
from harness.replay.suspect import Cause, Suspect
from harness.replay.taken_out import without_time

_LAUNCHING = 0.1  # of a step between operators, from which the operators are called small


def tiny(scene: Scene) -> Iterator[Suspect]:
    """The host needs much time between operators, or between launches."""
    chosen = [s for phase in (FORWARD, BACKWARD, OPTIMIZER) for s in slots((Sort.HOST_GAP,), phase)]
    for found in without_time(scene, Cause.TINY_KERNELS, chosen, None):
        between = float(scene.time_ns[:, :, chosen].sum(axis=2).mean())
        if between > _LAUNCHING * scene.step_ns:
            said = f"{between / scene.step_ns:.0%} of a step between operators"
            yield replace(found, evidence=said, standing=True)


def buckets(scene: Scene) -> Iterator[Suspect]:
    """Gradients travel in many small messages."""
    edited, small = larger_buckets(scene), small_buckets(scene)
    if edited is None or small is None:
        return
    everyone, steps = tuple(range(scene.processes)), scene.job.measured.shape[1]
    each, size = np.count_nonzero(small) / scene.job.measured.size, scene.job.messages.bytes[small].mean()
    said = f"{each:.0f} messages of {size / 1e3:.0f} kB in each step"
    yield Suspect(
        Cause.SMALL_BUCKETS, everyone, BACKWARD, np.ones(steps, np.bool_), edited.lengths, said, standing=True
    )
