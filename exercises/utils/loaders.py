"""Two data loaders: one prepares its data ahead of time, one while training waits. Exercise 1 compares them.

Both give the same batches in the same order.
"""

from __future__ import annotations

import os
import signal
import threading
from argparse import BooleanOptionalAction
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from exercises.utils.arguments import TrainingArguments, natural
from exercises.utils.data import (
    Instruction,
    OnTheFlyDataset,
    TokenBatch,
    Vocabulary,
    collate,
    encode_example,
    load_instructions,
)
from exercises.utils.faults import settings
from exercises.utils.python_tokenizer import PythonTokenizer, UnsupportedTokenizerError
from harness.common.errors import RequestError
from harness.observe.ranges import annotate


@dataclass(frozen=True)
class LoaderArguments(TrainingArguments):
    """The options of a training whose batches come from here. None: `dataloader_workers` as many as suit the cores,
    `pin_memory` on GPUs, `non_blocking` as fits the loader."""

    dataloader_workers: int | None
    pin_memory: bool | None
    non_blocking: bool | None


def declare_loading(parser: Any) -> None:
    """The loaders' options."""
    workers = "processes per rank that prepare batches ahead of time; 0: the training does; default: 1 or 2"
    parser.add_argument("--dataloader-workers", type=natural, help=workers)
    either = BooleanOptionalAction
    parser.add_argument("--pin-memory", action=either, help="collate into pinned memory; default: on GPUs")
    parser.add_argument("--non-blocking", action=either, help="do not wait for a batch's copy to the GPU")


@dataclass(frozen=True)
class OnDevice:
    """A loader's batches, copied to the training's device: a range for each of the two parts.

    With `non_blocking` and pinned memory the second range ends when the copy has started.
    """

    batches: Any
    device: torch.device
    non_blocking: bool

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[TokenBatch]:
        batches = iter(self.batches)
        while True:
            with annotate("data_loading (host)"):
                batch = next(batches, None)
            if batch is None:
                return
            with annotate("data_movement (device)"):
                moved = {k: v.to(self.device, non_blocking=self.non_blocking) for k, v in batch.items()}
            yield moved


def on_device(arguments: LoaderArguments, batches: Any, device: torch.device, usual: bool = True) -> OnDevice:
    """`batches` on `device`. usual: whether their copies are not waited for, where nothing else was asked for."""
    asked = usual if arguments.non_blocking is None else arguments.non_blocking
    return OnDevice(batches, device, settings.pins_batches(arguments.faults, asked))


def prepared_loader(arguments: LoaderArguments, vocabulary: Vocabulary, seq_length: int) -> DataLoader[TokenBatch]:
    """Tokenised once before training; worker processes collate batches ahead of time into pinned memory."""
    encoded = [encode_example(each, vocabulary, seq_length) for each in _enough_examples(arguments)]
    workers = _workers() if arguments.dataloader_workers is None else arguments.dataloader_workers
    usual = not arguments.on_cpu if arguments.pin_memory is None else arguments.pin_memory
    pin_memory = settings.pins_batches(arguments.faults, usual)
    return _loader(arguments, encoded, workers=workers, pin_memory=pin_memory)


def on_the_fly_loader(arguments: TrainingArguments, vocabulary: Vocabulary, seq_length: int) -> DataLoader[TokenBatch]:
    """Tokenised in plain Python by the training process when it needs a batch, into pageable memory."""
    examples = OnTheFlyDataset(_enough_examples(arguments), _in_plain_python(vocabulary), seq_length)
    return _loader(arguments, examples, workers=0, pin_memory=False)


def _in_plain_python(vocabulary: Vocabulary) -> Vocabulary:
    """`vocabulary` with the tokenizer in plain Python, where that can read the file."""
    try:
        return replace(vocabulary, encode=PythonTokenizer(vocabulary.source / "tokenizer.json").encode)
    except (UnsupportedTokenizerError, OSError):
        return vocabulary


def _outlive_sigterm(worker: int) -> None:
    """Make a worker ignore every SIGTERM but that of its training.

    A batch system sends SIGTERM to every process of a job, but the training needs its workers to finish the step. A
    training that fails sends SIGTERM to its workers and waits until they end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_obey_the_parent, args=(os.getppid(),), daemon=True).start()


def _obey_the_parent(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        continue
    os._exit(0)


def _workers() -> int:
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(2, cores - 1))  # one core is for the training itself


def _loader(
    arguments: TrainingArguments, examples: Dataset[TokenBatch] | Sequence[TokenBatch], workers: int, pin_memory: bool
) -> DataLoader[TokenBatch]:
    return DataLoader(
        cast("Dataset[TokenBatch]", examples),  # a list works, too
        batch_size=arguments.micro_batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(arguments.seed),
        collate_fn=collate,
        drop_last=True,
        num_workers=workers,
        worker_init_fn=_outlive_sigterm,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
    )


def _enough_examples(arguments: TrainingArguments) -> list[Instruction]:
    examples = load_instructions(arguments.data)
    needed = arguments.micro_batch_size * int(os.environ.get("WORLD_SIZE", "1"))
    if len(examples) < needed:
        raise RequestError(
            f"--micro-batch-size {arguments.micro_batch_size}: one batch on every process takes {needed} "
            f"examples, and {arguments.data} has {len(examples)}"
        )
    return examples
