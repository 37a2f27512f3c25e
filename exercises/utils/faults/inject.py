"""Injects the faults of `--fault` into a training, from its first step to its last, also into one that knows nothing
of them: then the observer tells the moments of its steps."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from exercises.utils.arguments import TrainingArguments
from exercises.utils.faults import ends, machine, slow, startup
from exercises.utils.faults.moments import Moments, WatchedLoader, watch_model, watch_update
from exercises.utils.faults.target import FaultTarget, lines_of
from harness.common.faults.fault import Fault, parse_fault
from harness.observe.metrics import rank_of_process


class LoaderTraining(Protocol):
    """What the trainings with a data loader share."""

    @property
    def arguments(self) -> TrainingArguments: ...

    @property
    def loader(self) -> Any: ...


Trained = TypeVar("Trained", bound=LoaderTraining)


@contextmanager
def injected(experiment: Trained, model: Any, optimizer: Any) -> Iterator[Trained]:
    """The training with the faults that were asked for; without `--fault`, as it is.

    A step is one batch of its loader; `optimizer.step()` updates the parameters of `model`.
    """
    if not experiment.arguments.faults:
        yield experiment
        return
    with ExitStack() as until:
        moments = Moments()
        watch_model(model, moments, until)
        watch_update(optimizer, moments, until)
        inject_all(experiment.arguments, [model], moments, until)
        yield replace(experiment, loader=WatchedLoader(experiment.loader, moments))  # type: ignore[type-var]  # a dataclass


def inject_all(arguments: TrainingArguments, models: list[Any], moments: Moments, until: ExitStack) -> None:
    """Start every fault in which this rank takes part; `moments` must be announced."""
    startup.first_step_begins()
    device = torch.device("cpu" if arguments.on_cpu else "cuda")
    lines = lines_of(arguments.run_dir, rank_of_process()[0], until)
    _start(
        arguments.faults, FaultTarget(rank_of_process()[0], device, arguments.run_dir, models, moments, lines, until)
    )


def _start(faults: Iterable[Fault], target: FaultTarget) -> None:
    for fault in faults:
        if fault.starts_on(target.rank):
            INJECTORS[fault.name](fault, target)


def _built_in(fault: Fault, target: FaultTarget) -> None:
    """Nothing: the training asks `settings` for the fault when it is built, or `startup` has begun it."""


INJECTORS: dict[str, Callable[[Fault, FaultTarget], None]] = {
    "checkpoint": slow.write_checkpoints,
    "crash": ends.crash,
    "data-stall": slow.stall_data,
    "extra-compute": slow.compute_more,
    "gc": slow.collect_garbage,
    "hang": ends.hang,
    "host-stall": slow.stall_host,
    "long-sequences": slow.lengthen_sequences,
    "nan": ends.break_loss,
    "noisy-neighbour": machine.start_neighbour,
    "oom": ends.run_out_of_memory,
    "pageable": _built_in,
    "pause": machine.pause,
    "pinned-together": machine.pin_together,
    "slow-checkpoint": slow.write_checkpoints_slowly,
    "slow-import": _built_in,
    "slow-link": slow.slow_link,
    "slow-weights": _built_in,
    "small-buckets": _built_in,
    "sync": slow.synchronise,
    "tiny-kernels": slow.split_kernels,
    "uneven-stages": _built_in,
}


def begin(run_dir: Path, rank: int, model: Any, texts: Sequence[str]) -> Moments:
    """Start every fault in which this rank takes part; returns the moments, which the caller announces. texts:
    `NAME[,key=value…]`. model: the module that is trained, or None where it is not known."""
    startup.first_step_begins()
    moments, until = Moments(), ExitStack()
    lines = lines_of(run_dir, rank, until)
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")  # type: ignore[no-untyped-call]
    models = [] if model is None else [model]
    _start(map(parse_fault, texts), FaultTarget(rank, device, run_dir, models, moments, lines, until))
    atexit.register(until.close)
    return moments
