"""Pre-training data: a Megatron .bin/.idx pair, given or built from instructions, and the samples of each rank.

The order of samples depends only on the seed. Data-parallel replicas divide a global batch between them;
tensor-, pipeline- and context-parallel ranks of one replica read the same samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder, get_bin_path, get_idx_path
from megatron.core.utils import get_batch_on_this_cp_rank
from numpy.typing import NDArray
from torch import Tensor

from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.data import check_vocabulary, load_instructions, load_vocabulary
from harness.common.errors import RequestError
from harness.common.model.megatron_layout import BatchSizes


def prefix_of(arguments: MegatronArguments, vocabulary_size: int) -> Path:
    """The prefix of the .bin/.idx pair to read: `--data-path`, else a pair in the run's folder built from `--data`.

    Rank 0 builds the pair and the others wait; an existing pair stays as it is.
    """
    if arguments.data_path is not None:
        return arguments.data_path
    prefix = arguments.run_dir / "data" / arguments.data.stem
    if dist.get_rank() == 0 and not Path(get_idx_path(str(prefix))).exists():
        prefix.parent.mkdir(parents=True, exist_ok=True)
        _build_dataset(prefix, arguments.data, vocabulary_size)
    dist.barrier()
    return prefix


def _build_dataset(prefix: Path, data: Path, vocabulary_size: int) -> None:
    vocabulary = load_vocabulary(checkpoint=None)
    check_vocabulary(vocabulary, vocabulary_size)
    unfinished = prefix.with_name(f".unfinished-{os.getpid()}-{prefix.name}")
    builder = IndexedDatasetBuilder(get_bin_path(str(unfinished)), dtype=np.int32)
    for example in load_instructions(data):
        ids = [*vocabulary.encode(example.prompt + example.output), vocabulary.end_id]
        builder.add_document(ids, [len(ids)])
    builder.finalize(get_idx_path(str(unfinished)))
    # The index is renamed last: where it exists, the data is complete.
    for path_of in (get_bin_path, get_idx_path):
        Path(path_of(str(unfinished))).replace(path_of(str(prefix)))


@dataclass(frozen=True)
class MicroBatch:
    """Tokens and what follows them, each (samples, sequence of this context-parallel rank), int64."""

    tokens: Tensor
    labels: Tensor
    positions: Tensor


class Samples:
    """The documents of a .bin/.idx pair as one stream of tokens, cut into samples and shuffled.

    Each sample has one token more than the sequence: the last one is only a label.

    Raises RequestError: there is no such pair, or a sample has a token outside the vocabulary of `vocabulary_size`.
    """

    def __init__(self, prefix: Path, seq_length: int, vocabulary_size: int, seed: int) -> None:
        if not Path(get_idx_path(str(prefix))).is_file():
            raise RequestError(f"--data-path {prefix}: there is no {get_idx_path(str(prefix))}")
        self._dataset = IndexedDataset(str(prefix))
        self._length = seq_length + 1
        self._ends = np.cumsum(self._dataset.sequence_lengths, dtype=np.int64)
        self._count = max(1, (int(self._ends[-1]) - 1) // seq_length)
        self._prefix, self._vocabulary_size, self._seed = prefix, vocabulary_size, seed
        self._order: tuple[int, Tensor] | None = None  # the current epoch and its shuffled samples

    def __len__(self) -> int:
        return self._count

    def sample(self, index: int) -> Tensor:
        """Sample `index` of a training that never ends, (sequence + 1,) int64. Each epoch has its own order."""
        epoch, place = divmod(index, self._count)
        return self._tokens_from(int(self._order_of(epoch)[place]) * (self._length - 1))

    def _order_of(self, epoch: int) -> Tensor:
        # Samples are read in order. A new shuffle of millions of samples for each one would take longer than training.
        if self._order is None or self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._order = (epoch, torch.randperm(self._count, generator=generator))
        return self._order[1]

    def micro_batches(
        self, batch: BatchSizes, iteration: int, loading: Callable[[int], AbstractContextManager[object]]
    ) -> Iterator[MicroBatch]:
        """This rank's micro-batches of one iteration; each is read inside `loading(number since the start)`."""
        replicas = parallel_state.get_data_parallel_world_size()
        count = batch.num_microbatches(replicas)
        for number in range(iteration * count, (iteration + 1) * count):
            with loading(number):
                first = (number * replicas + parallel_state.get_data_parallel_rank()) * batch.micro_size
                rows = torch.stack([self.sample(first + row) for row in range(batch.micro_size)])
                rows = rows.to(torch.cuda.current_device())
                positions = torch.arange(rows.shape[1] - 1, device=rows.device).expand(rows.shape[0], -1)
                whole = {"tokens": rows[:, :-1], "labels": rows[:, 1:], "positions": positions}
                contiguous = {name: part.contiguous() for name, part in whole.items()}
                micro_batch = MicroBatch(**get_batch_on_this_cp_rank(contiguous))
            yield micro_batch

    def _tokens_from(self, begin: int) -> Tensor:
        """`_length` tokens of the stream, from place `begin` on, starting over at its end."""
        parts: list[NDArray[Any]] = []
        missing = self._length
        while missing:
            begin %= int(self._ends[-1])
            document = int(np.searchsorted(self._ends, begin, side="right"))
            offset = begin - int(self._ends[document] - self._dataset.sequence_lengths[document])
            parts.append(self._dataset.get(document, offset=offset)[:missing])
            missing -= len(parts[-1])
            begin += len(parts[-1])
        tokens = np.concatenate(parts).astype(np.int64)
        # On a GPU a token without an embedding ends the process with an assertion that names no token.
        if tokens.max() >= self._vocabulary_size:
            raise RequestError(
                f"--data-path {self._prefix}: has token {tokens.max()}, the model only {self._vocabulary_size} tokens"
            )
        return torch.from_numpy(tokens)
