"""Trains the small byte-level BPE tokenizer from our own instructions; the same input gives the same file.

    python exercises/datasets/train_tokenizer.py [FOLDER]

It splits text as Llama 3's tokenizer does, so that the same program reads both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # `exercises` is found from anywhere

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from exercises.utils.data import load_instructions

HERE = Path(__file__).resolve().parent
VOCAB_SIZE = 1024
SPECIAL_TOKENS = ["<s>", "</s>", "<pad>"]  # ids 0, 1, 2
# Contractions, words with one leading sign, up to three digits, signs, line ends, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(data: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    examples = load_instructions(data)
    tokenizer.train_from_iterator((example.prompt + example.output for example in examples), trainer)
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Write what transformers' AutoTokenizer needs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True) + "\n", encoding="utf-8")
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL_TOKENS, strict=True))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(train(HERE / "instructions.json"), Path(sys.argv[1]) if sys.argv[1:] else HERE / "tokenizer")
