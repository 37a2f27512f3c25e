"""The nearest setting that fits into memory: a few changes, the least intrusive first, each resolved as a launch is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from harness.common.errors import RequestError
from harness.experiment.ddp import DDP
from harness.experiment.deepspeed import DeepSpeed
from harness.experiment.exercises import Experiment
from harness.experiment.megatron import Megatron
from harness.experiment.parse import command_of, validate
from harness.launch.job import Job
from harness.launch.submit import prepare
from harness.site.site import site_names
from harness.study.plan.capacity import FITS, TIGHT, capacity_of
from harness.study.plan.memory import peak_memory
from harness.study.plan.workload import workload_of

Fields = dict[str, Any]


class NearestFit(NamedTuple):
    """A setting, as a command, and whether it fits or is tight."""

    command: str
    verdict: str


def nearest_fit(asked: Experiment, job: Job) -> NearestFit | None:
    """The first of the changes that fits, else the first that is tight; None: none of them does.

    asked: the request of which `job` is the resolved one.
    """
    tight = None
    site = job.site.name if job.site.name in site_names() else None
    for experiment in _candidates(asked, job.site.max_nodes):
        share = _share_of_memory(experiment, job)
        if share is None or share > TIGHT:
            continue
        arguments = command_of(experiment, site, job.site.defaults)
        if arguments is None:
            continue
        found = NearestFit(f"slurm.sh {shlex.join(arguments)}", "fits" if share <= FITS else "is tight")
        if share <= FITS:
            return found
        tight = tight or found
    return tight


def _share_of_memory(experiment: Experiment, job: Job) -> float | None:
    """None: the change cannot be launched, or there is no memory to compare it with."""
    try:
        changed = prepare(experiment, job.site).job
    except RequestError:
        return None
    w = workload_of(changed)
    total = capacity_of(changed, w.ranks_per_node).total_bytes if w else None
    return peak_memory(w).highest.total / total if w and total else None


def _candidates(asked: Experiment, max_nodes: int | None) -> Iterator[Experiment]:
    for change in _changes(asked, max_nodes):
        kind = change.get("as", type(asked))
        given = {
            k: v
            for k, v in {**asked.model_dump(exclude_unset=True), **change}.items()
            if k in kind.model_fields
        }
        given["exercise"] = kind.model_fields["exercise"].default
        experiment, _ = validate(kind, given)
        if experiment is not None:
            yield experiment


def _changes(asked: Experiment, max_nodes: int | None) -> Iterator[Fields]:
    """Fields to change: on the same ranks first, then over more of them."""
    half: Fields = {} if asked.in_bf16 else {"mixed_precision": True}
    again: Fields = {"activation_checkpointing": True} | half
    smaller = list(_halves(getattr(asked, "micro_batch_size", None)))
    yield from (*smaller, half, again, *(again | each for each in smaller))
    for spread in _spread(asked, max_nodes):
        yield spread
        yield spread | half
        yield spread | again
        yield spread | again | {"micro_batch_size": 1}


def _halves(size: int | None) -> Iterator[Fields]:
    size = size or 2
    while size > 1:
        size //= 2
        yield {"micro_batch_size": size}


def _spread(asked: Experiment, max_nodes: int | None) -> Iterator[Fields]:
    """The model over more ranks: another stage or exercise, then more nodes."""
    if isinstance(asked, Megatron):
        sizes: list[Fields] = [{"tp": None, "pp": stages} for stages in (1, 2, 4)]
    elif isinstance(asked, DDP):
        sizes = [{"as": DeepSpeed, "model": asked.model or asked.default_model}]
    else:
        sizes = [{"zero_stage": 3, "hpz_partition": None}, {"zero_stage": 3, "hpz_partition": 1}]
    nodes = [asked.nodes * factor for factor in (1, 2, 4, 8)]
    for number in (n for n in nodes if n == asked.nodes or n <= (max_nodes or n)):
        yield from (one | {"nodes": number} for one in sizes)
