"""Instruction data in Alpaca's JSON format, from file to batches with labels.

Each example becomes prompt, answer and end token, padded to one length. The loss counts the answer only:
labels of prompt and padding are masked. Padding is on the right, so causal attention of a real token never sees it.
There is no attention mask: with one the fastest attention kernels do not work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from exercises.utils.arguments import DEFAULT_TOKENIZER
from exercises.utils.errors import read_named_file
from harness.common.errors import RequestError

# Alpaca's own wording (Taori et al. 2023).
PREAMBLE = (
    "Below is an instruction that describes a task{}. Write a response that appropriately completes the request.\n\n"
)
PAIRED = ", paired with an input that provides further context"

IGNORED = -100  # the label that cross-entropy leaves out

TokenBatch = dict[str, Tensor]  # input_ids, labels: each (examples, seq_length), int64


@dataclass(frozen=True)
class Instruction:
    """One example: the instruction, its input (often empty), and the answer."""

    instruction: str
    input: str
    output: str

    @property
    def prompt(self) -> str:
        preamble = PREAMBLE.format(PAIRED if self.input else "")
        context = f"### Input:\n{self.input}\n\n" if self.input else ""
        return f"{preamble}### Instruction:\n{self.instruction}\n\n{context}### Response:\n"


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as far as training needs it: text to ids, and the two special ids."""

    encode: Callable[[str], list[int]]  # without special tokens
    end_id: int
    padding_id: int
    size: int
    source: Path


def load_instructions(path: Path) -> list[Instruction]:
    """Read a JSON list (or JSON lines) of objects with instruction, input, output. Raises RequestError: the file cannot
    be read, or is no such list."""

    def rows(text: str) -> list[Any]:
        whole = text.lstrip().startswith("[")
        return list(json.loads(text)) if whole else [json.loads(line) for line in text.splitlines() if line]

    found: list[Instruction] = []
    for row in read_named_file("--data", path, rows, "JSON"):
        try:
            found.append(Instruction(str(row["instruction"]), str(row.get("input", "")), str(row["output"])))
        except (TypeError, KeyError, AttributeError):
            raise RequestError(f"--data {path}: entry {len(found)} lacks `instruction` or `output`") from None
    return found


def load_vocabulary(checkpoint: Path | None) -> Vocabulary:
    """The checkpoint's own tokenizer, else the small one in `datasets/`."""
    files = ("tokenizer.json", "tokenizer.model")
    folder = DEFAULT_TOKENIZER
    if checkpoint is not None and any((checkpoint / name).is_file() for name in files):
        folder = checkpoint
    loaded: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    end_id = loaded.eos_token_id
    padding_id = loaded.pad_token_id if loaded.pad_token_id is not None else end_id
    return Vocabulary(partial(loaded.encode, add_special_tokens=False), end_id, padding_id, len(loaded), folder)


def check_vocabulary(vocabulary: Vocabulary, model_vocab_size: int) -> None:
    """Raises RequestError: the tokenizer has ids for which the model has no embedding."""
    if vocabulary.size > model_vocab_size:
        raise RequestError(
            f"the tokenizer {vocabulary.source} has {vocabulary.size} tokens, but the model has {model_vocab_size}"
        )


def encode_example(example: Instruction, vocabulary: Vocabulary, seq_length: int) -> TokenBatch:
    """One example as tensors of length `seq_length`, cut or padded; labels count the answer only.

    A prompt that fills the length is cut, so that the answer's first token fits: a batch without labels has no loss.
    """
    prompt_length = len(vocabulary.encode(example.prompt))
    whole = [*vocabulary.encode(example.prompt + example.output), vocabulary.end_id]
    kept = min(prompt_length, seq_length - 1)
    ids = [*whole[:kept], *whole[prompt_length:]][:seq_length]
    labels = [IGNORED] * kept + ids[kept:]
    missing = seq_length - len(ids)
    return {
        "input_ids": torch.tensor(ids + [vocabulary.padding_id] * missing),
        "labels": torch.tensor(labels + [IGNORED] * missing),
    }


def collate(examples: Sequence[TokenBatch]) -> TokenBatch:
    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}
