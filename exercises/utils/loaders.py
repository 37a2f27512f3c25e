"""Two data loaders: one prepares its data ahead of time, one while training waits. Exercise 1 compares them.

Both give the same batches in the same order. The slow one uses byte-pair encoding in plain Python, as textbooks write
it: correct, with the same ids as the compiled tokenizer, and hundreds of times too slow. Pipelines that tokenise during
training often look like this. It reads the `tokenizer.json` of a byte-level BPE (Llama 3's and ours).
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import threading
from argparse import BooleanOptionalAction
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import regex  # type: ignore[import-untyped] # `re` lacks \p{L}
import torch
from torch.utils.data import DataLoader, Dataset

from exercises.utils.arguments import TrainingArguments, natural
from exercises.utils.data import Instruction, TokenBatch, Vocabulary, collate, encode_example, load_instructions
from exercises.utils.faults import settings
from harness.common.errors import RequestError
from harness.observe.ranges import annotate

Tokens = list[str | None]
TokenPair = tuple[str | None, str | None]


class PythonTokenizer:
    """Text to ids."""

    def __init__(self, path: Path) -> None:
        """Read `path`, a tokenizer.json. Raises ValueError: the file has another kind of tokenizer. OSError: the file
        cannot be read."""
        content = json.loads(path.read_text(encoding="utf-8"))
        self._split = regex.compile(_splitting_pattern(content))
        self._ids: dict[str, int] = content["model"]["vocab"]
        self._whole_words = bool(content["model"].get("ignore_merges"))
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in content["model"]["merges"])
        self._ranks: dict[TokenPair, int] = {(left, right): rank for rank, (left, right) in enumerate(merges)}
        self._characters = _byte_characters()

    def encode(self, text: str) -> list[int]:
        tokens: Tokens = []
        for word in self._split.findall(text):
            tokens += [*self._word(word), None]  # None ends a word: no merge crosses it
        return [self._ids[token] for token in self._merge(tokens) if token is not None]

    def _word(self, word: str) -> list[str]:
        characters = [self._characters[byte] for byte in word.encode("utf-8")]
        whole = "".join(characters)
        return [whole] if self._whole_words and whole in self._ids else characters

    def _merge(self, tokens: Tokens) -> Tokens:
        """As in many tutorials: count all pairs of the whole text, make one merge, count again."""
        never = len(self._ranks)
        while counts := _count_pairs(tokens):
            best = min(counts, key=lambda pair: self._ranks.get(pair, never))
            if best not in self._ranks:
                break
            for _ in range(counts[best]):
                tokens = _join_first(tokens, best)
        return tokens


def _count_pairs(tokens: Tokens) -> dict[TokenPair, int]:
    counts: dict[TokenPair, int] = {}
    for pair in itertools.pairwise(tokens):
        counts[pair] = counts.get(pair, 0) + 1
    return counts


def _join_first(tokens: Tokens, pair: TokenPair) -> Tokens:
    """Copy `tokens`, with the first occurrence of `pair`, if there is one, joined to one token."""
    joined: Tokens = []
    found = False
    for token in tokens:
        if not found and joined and (joined[-1], token) == pair:
            joined[-1] = f"{pair[0]}{pair[1]}"
            found = True
        else:
            joined.append(token)
    return joined


def _splitting_pattern(content: dict[str, Any]) -> str:
    first, *rest = (content.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
    pattern = first.get("pattern", {}).get("Regex")
    byte_level = any(part.get("type") == "ByteLevel" and not part.get("add_prefix_space") for part in rest)
    if content["model"].get("type") != "BPE" or pattern is None or not byte_level:
        raise ValueError("not a byte-level BPE with a splitting pattern")
    return str(pattern)


def _byte_characters() -> list[str]:
    """The visible character that stands for each byte in a byte-level vocabulary, as in GPT-2."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]


@dataclass(frozen=True)
class LoaderArguments(TrainingArguments):
    """The options of a training that accelerate spreads, with batches from here. None: `dataloader_workers` as many as
    suit the cores, `pin_memory` on GPUs, `non_blocking` as fits the loader."""

    dataloader_workers: int | None
    pin_memory: bool | None
    non_blocking: bool | None
    compile: bool


def declare_loading(parser: Any) -> None:
    workers = "processes per rank that prepare batches ahead of time; 0: the training does; default: 1 or 2"
    parser.add_argument("--dataloader-workers", type=natural, help=workers)
    either = BooleanOptionalAction
    parser.add_argument("--pin-memory", action=either, help="collate into pinned memory; default: on GPUs")
    parser.add_argument("--non-blocking", action=either, help="do not wait for a batch's copy to the GPU")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")


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
    """`batches` on `device`. usual: whether their copies are not waited for, where nothing else was requested."""
    non_blocking = usual if arguments.non_blocking is None else arguments.non_blocking
    return OnDevice(batches, device, settings.pins_batches(arguments.faults, non_blocking))


def prepared_loader(arguments: LoaderArguments, vocabulary: Vocabulary, seq_length: int) -> DataLoader[TokenBatch]:
    """Tokenised once before training; worker processes collate batches ahead of time into pinned memory."""
    encoded = [encode_example(each, vocabulary, seq_length) for each in _enough_examples(arguments)]
    workers = _workers() if arguments.dataloader_workers is None else arguments.dataloader_workers
    usual = not arguments.on_cpu if arguments.pin_memory is None else arguments.pin_memory
    pin_memory = settings.pins_batches(arguments.faults, usual)
    return _loader(arguments, encoded, collate, workers=workers, pin_memory=pin_memory)


def on_the_fly_loader(arguments: TrainingArguments, vocabulary: Vocabulary, seq_length: int) -> DataLoader[TokenBatch]:
    """Tokenised in plain Python by the training process when it needs a batch, into pageable memory."""
    slow = _in_plain_python(vocabulary)

    def encoded(examples: Sequence[Instruction]) -> TokenBatch:
        return collate([encode_example(each, slow, seq_length) for each in examples])

    return _loader(arguments, _enough_examples(arguments), encoded, workers=0, pin_memory=False)


def _in_plain_python(vocabulary: Vocabulary) -> Vocabulary:
    """`vocabulary` with the tokenizer in plain Python, where that can read the file."""
    try:
        return replace(vocabulary, encode=PythonTokenizer(vocabulary.source / "tokenizer.json").encode)
    except (ValueError, OSError):
        return vocabulary


def _outlive_sigterm(worker: int) -> None:
    """Make a worker ignore every SIGTERM but that of its training.

    A batch system sends SIGTERM to every process of a job, but the training needs its workers to finish the step. A
    training that fails sends SIGTERM to its workers and waits until they end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parent = os.getppid()

    def obey_the_parent() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            continue
        os._exit(0)

    threading.Thread(target=obey_the_parent, daemon=True).start()


def _workers() -> int:
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(2, cores - 1))  # one core is for the training itself


def _loader(
    arguments: TrainingArguments,
    examples: Sequence[Any],
    to_batch: Callable[[Any], TokenBatch],
    workers: int,
    pin_memory: bool,
) -> DataLoader[TokenBatch]:
    # A forked process collects nothing that it inherited: to free a CUDA event there aborts the process.
    os.register_at_fork(after_in_child=gc.freeze)
    return DataLoader(
        cast("Dataset[TokenBatch]", examples),  # a list works, too
        batch_size=arguments.micro_batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(arguments.seed),
        collate_fn=to_batch,
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
