"""The rules, each of which looks at a job's time and names what it suspects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from harness.replay.context import ReplayContext, slots
from harness.replay.counterfactuals import larger_buckets, small_buckets
from harness.replay.graph import BACKWARD, FORWARD, OPTIMIZER, TimeCategory
from harness.replay.host_causes import data, host, sending, stopped, without_core
from harness.replay.rank_causes import heavier, uneven
from harness.replay.suspect import Cause, Suspect, without_time

_LAUNCHING = 0.1  # of a step between operators, from which the operators are called small


def tiny(context: ReplayContext) -> Iterator[Suspect]:
    """The host needs much time between operators, or between launches."""
    chosen = [s for phase in (FORWARD, BACKWARD, OPTIMIZER) for s in slots((TimeCategory.HOST_GAP,), phase)]
    for found in without_time(context, Cause.TINY_KERNELS, chosen, None):
        between = float(context.time_ns[:, :, chosen].sum(axis=2).mean())
        if between > _LAUNCHING * context.step_ns:
            said = f"{between / context.step_ns:.0%} of a step between operators"
            yield replace(found, evidence=said, standing=True)


def buckets(context: ReplayContext) -> Iterator[Suspect]:
    """Gradients travel in many small messages."""
    edited, small = larger_buckets(context), small_buckets(context)
    if edited is None or small is None:
        return
    everyone, steps = tuple(range(context.processes)), context.job.measured.shape[1]
    each, size = np.count_nonzero(small) / context.job.measured.size, context.job.messages.bytes[small].mean()
    said = f"{each:.0f} messages of {size / 1e3:.0f} kB in each step"
    yield Suspect(
        Cause.SMALL_BUCKETS, everyone, BACKWARD, np.ones(steps, np.bool_), edited.lengths, said, standing=True
    )


Rule = Callable[[ReplayContext], Iterator[Suspect]]
RULES: tuple[Rule, ...] = (
    data,
    host,
    sending,
    stopped,
    without_core,
    uneven,
    heavier,
    tiny,
    buckets,
)


def suspects(context: ReplayContext) -> list[Suspect]:
    """What every rule suspects."""
    return [found for rule in RULES for found in rule(context)]
