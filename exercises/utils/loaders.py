"""Two ways to feed a training: batches prepared ahead, or made while it waits. Exercise 1 compares them.

Both give the same batches in the same order.
"""

from __future__ import annotations

import os
import signal
import threading

import torch
from torch.utils.data import DataLoader, Dataset

from exercises.utils.arguments import TrainingArguments
from exercises.utils.data import (
    Batch,
    Encode,
    Instruction,
    OnTheFlyDataset,
    PreparedDataset,
    Vocabulary,
    collate,
    load_instructions,
)
from exercises.utils.python_tokenizer import PythonTokenizer, UnsupportedTokenizerError
from harness.common.errors import RequestError


def prepared_loader(
    arguments: TrainingArguments, vocabulary: Vocabulary, seq_length: int
) -> DataLoader[Batch]:
    """Tokenised once up front; worker processes collate ahead of time into pinned memory."""
    examples = _enough_examples(arguments)
    return _loader(
        arguments,
        PreparedDataset(examples, vocabulary, seq_length),
        workers=_workers(),
        pin_memory=not arguments.on_cpu,
    )


def on_the_fly_loader(
    arguments: TrainingArguments, vocabulary: Vocabulary, seq_length: int
) -> DataLoader[Batch]:
    """Tokenised in plain Python by the training process when it asks for a batch, into pageable memory."""
    examples = _enough_examples(arguments)
    return _loader(
        arguments,
        OnTheFlyDataset(examples, slow_encode(vocabulary), vocabulary, seq_length),
        workers=0,
        pin_memory=False,
    )


def slow_encode(vocabulary: Vocabulary) -> Encode:
    """The plain Python tokenizer where it can read the file, else the compiled one."""
    try:
        return PythonTokenizer(vocabulary.source / "tokenizer.json").encode
    except (UnsupportedTokenizerError, OSError):
        return vocabulary.encode


def _outlive_sigterm(worker: int) -> None:
    """End by the training's SIGTERM only. A batch system sends it to every process of a job, and then the training
    finishes its step, for which it needs its workers; but a training that fails waits until they have obeyed it.
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
    arguments: TrainingArguments, dataset: Dataset[Batch], workers: int, pin_memory: bool
) -> DataLoader[Batch]:
    return DataLoader(
        dataset,
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
            f"examples, {arguments.data} has {len(examples)}"
        )
    return examples
