"""Injects the faults of `--fault` into a training, from its first step to its last. Knows no fault by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, TypeVar

import torch

from exercises.utils.arguments import TrainingArguments
from exercises.utils.faults.moments import Moments, WatchedLoader, watch_model, watch_update
from exercises.utils.faults.records import lines_of
from exercises.utils.faults.target import Target
from harness.common.faults import Fault
from harness.observe.metrics import rank_of_process


class Training(Protocol):
    """What the trainings with a data loader share."""

    @property
    def arguments(self) -> TrainingArguments: ...

    @property
    def loader(self) -> Any: ...


Trained = TypeVar("Trained", bound=Training)


@contextmanager
def injected(training: Trained, model: Any, optimizer: Any) -> Iterator[Trained]:
    """The training with the faults that were asked for; without `--fault`, as it is.

    A step is one batch of its loader; `optimizer.step()` updates the parameters of `model`.
    """
    if not training.arguments.faults:
        yield training
        return
    with ExitStack() as until:
        moments = Moments()
        watch_model(model, moments, until)
        watch_update(optimizer, moments, until)
        inject_all(training.arguments, [model], moments, until)
        yield replace(training, loader=WatchedLoader(training.loader, moments))  # type: ignore[type-var]  # a dataclass


def inject_all(arguments: TrainingArguments, models: list[Any], moments: Moments, until: ExitStack) -> None:
    """Start every fault in which this rank takes part; `moments` must be announced."""
    rank = rank_of_process()[0]
    lines = lines_of(arguments.run_dir, rank)
    until.callback(lines.close)
    device = torch.device("cpu" if arguments.on_cpu else "cuda")
    target = Target(rank, device, arguments.run_dir, models, moments, lines, until)
    for fault in arguments.faults:
        if fault.starts_on(rank):
            injector_of(fault)(fault, target)


def injector_of(fault: Fault) -> Callable[[Fault, Target], None]:
    """The `inject` of the fault's module, which does nothing if the training asks for a `setting` instead."""
    module = module_of(fault.name)
    inject: Callable[[Fault, Target], None] = getattr(module, "inject", _built_in)
    return inject


def module_of(name: str) -> ModuleType:
    """The module that has the fault's name."""
    return import_module(f"{__package__}.{name.replace('-', '_')}")


def _built_in(fault: Fault, target: Target) -> None: ...
