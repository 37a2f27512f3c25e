"""The way of a training around the student's loop: prepare it, open its metrics, its capture and its faults, train, and
end it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.optim.lr_scheduler import LambdaLR

from exercises.utils.arguments import Arguments
from exercises.utils.capture import Capture, open_capture
from exercises.utils.faults.inject import injected
from exercises.utils.stop import StopRequest
from exercises.utils.synchronisation import SynchronisationCheck, save_if_due
from harness.common.run_folder.metrics_lines import StartLine
from harness.observe.metrics import MetricsWriter

if TYPE_CHECKING:  # exercise 3 needs no accelerate
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from typing_extensions import Self

    from exercises.utils.loaders import LoaderArguments


@dataclass(frozen=True)
class LoopState(ABC, Generic[Arguments]):
    """What the loop of every exercise needs."""

    arguments: Arguments
    stop: StopRequest
    check: SynchronisationCheck
    description: StartLine

    @abstractmethod
    def with_faults(self) -> AbstractContextManager[Self]:
        """Inside, the state with the faults of `--fault`; without them, as it is."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a checkpoint into `folder`: each rank its part."""

    @abstractmethod
    def end(self) -> None:
        """Leave the process group."""

    def notes(self) -> Iterator[str]:
        """What the run says of itself when it is over: sentences without full stops."""
        yield from ()

    def save_if_due(self, step: int) -> None:
        """Write a checkpoint after `step`, if `--checkpoint-every` says so."""
        save_if_due(self.arguments, step, self.save)


Loaded = TypeVar("Loaded", bound="LoaderArguments")


@dataclass(frozen=True)
class LoaderState(LoopState[Loaded]):
    """What a loop over the batches of a data loader needs; accelerate spread model, optimizer and data."""

    accelerator: Accelerator
    model: Any
    optimizer: Any
    scheduler: LambdaLR
    loader: Any

    def with_faults(self) -> AbstractContextManager[Self]:
        return injected(self, self.model, self.optimizer)

    def notes(self) -> Iterator[str]:
        if self.arguments.compile:
            from exercises.utils import compilation  # torch._dynamo takes a second

            yield from compilation.sentences(self.arguments)

    def end(self) -> None:
        self.accelerator.end_training()


State = TypeVar("State", bound=LoopState[Any])
Train = Callable[[State, MetricsWriter, Capture], None]


def run_loop(
    parse: Callable[[], Arguments], build: Callable[[Arguments, StopRequest], State], train: Train[State]
) -> int:
    """Train what `build` makes with the loop `train`, and return the exit code: 0, or 143 after SIGTERM."""
    stop = StopRequest()
    training = build(parse(), stop)
    writer = MetricsWriter(training.arguments.run_dir, training.description)
    capture = open_capture(training.arguments, training.description.rank)
    with writer, capture, training.with_faults() as training:
        train(training, writer, capture)
        if notes := list(training.notes()):
            writer.compiled(notes)
            if training.description.rank == 0:
                print(*(f"{note}." for note in notes), sep="\n", flush=True)
        if stop.requested:
            writer.stopped("SIGTERM")
        else:
            training.check.finish()
    training.end()
    return stop.exit_code
