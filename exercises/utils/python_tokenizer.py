"""Byte-pair encoding in plain Python, as textbooks write it: correct, and hundreds of times too slow.

It gives the same ids as the compiled tokenizer. Pipelines that tokenise during training often look like this.
Reads the `tokenizer.json` of a byte-level BPE (Llama 3's and ours); knows nothing of other kinds.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import regex  # type: ignore[import-untyped] # `re` lacks \p{L}

Tokens = list[str | None]
TokenPair = tuple[str | None, str | None]


class UnsupportedTokenizerError(Exception):
    """The file is not a byte-level BPE with a splitting pattern."""


class PythonTokenizer:
    """Text to ids."""

    def __init__(self, path: Path) -> None:
        """Read `path`, a tokenizer.json.

        Raises:
            UnsupportedTokenizerError: the file has another kind of tokenizer.
            OSError: the file cannot be read.
        """
        content = json.loads(path.read_text(encoding="utf-8"))
        self._split = regex.compile(_splitting_pattern(content))
        self._ids: dict[str, int] = content["model"]["vocab"]
        self._whole_words = bool(content["model"].get("ignore_merges"))
        merges = [_pair(merge) for merge in content["model"]["merges"]]
        self._ranks: dict[TokenPair, int] = {pair: r for r, pair in enumerate(merges)}
        self._characters = _byte_characters()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without special tokens."""
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
        raise UnsupportedTokenizerError("not a byte-level BPE with a splitting pattern")
    return str(pattern)


def _pair(merge: str | list[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _byte_characters() -> list[str]:
    """The visible character that stands for each byte in a byte-level vocabulary, as in GPT-2."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(256)]
