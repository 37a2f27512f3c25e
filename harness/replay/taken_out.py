"""The job without the time in some slots of some processes, as a suspicion: what most rules come down to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.replay.scene import Scene
from harness.replay.suspect import Cause, Suspect, culprits, hit

LEAST = 0.02  # of a step: less is not looked at


def without_time(scene: Scene, cause: Cause, chosen: list[int], phase: int | None) -> Iterator[Suspect]:
    """The suspicion that the time in these slots is lost, where there is enough of it."""
    time = scene.time_ns[:, :, chosen].sum(axis=2)
    culprit = culprits(time.sum(axis=1))
    if culprit and time[list(culprit)].mean() >= LEAST * scene.step_ns:
        yield taken_out(scene, cause, phase, dict.fromkeys(culprit, chosen))


def taken_out(scene: Scene, cause: Cause, phase: int | None, chosen: dict[int, list[int]]) -> Suspect:
    """The job without the time in some slots of some processes."""
    factor = scene.job.unchanged()
    for process, of in chosen.items():
        factor[process, of] = 0
    by_step = np.stack([scene.time_ns[p][:, of].sum(axis=1) for p, of in chosen.items()]).max(axis=0)
    steps = hit(by_step)
    each = float(by_step[steps].mean()) / 1e6
    evidence = f"{each:.1f} ms in {int(steps.sum())} of {len(steps)} steps"
    return Suspect(cause, tuple(chosen), phase, steps, scene.job.scaled(factor), evidence)
