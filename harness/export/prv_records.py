"""Columns of integers to lines of text, in time order, fast. Does not know what the numbers mean.

A line is literal text with integers between; a Block is many lines of one shape. Digits are computed for a whole
column at once and the leading zeros are cut out with a mask: no Python object per line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I64, U8

Mask = NDArray[np.bool_]
CHUNK_LINES = 1 << 16
_PHASES = 8
_FOUR_DIGITS = np.array([list(b"%04d" % n) for n in range(10_000)], np.uint8)


@dataclass(frozen=True)
class Block:
    """n lines. `fields`: literal bytes, or a column of n integers ≥ 0. Sorted by (time, phase), then as given."""

    time_ns: I64
    phase: I64
    fields: Sequence[bytes | I64]

    def __len__(self) -> int:
        return len(self.time_ns)


def lines(blocks: Sequence[Block], chunk_lines: int = CHUNK_LINES) -> Iterator[bytes]:
    """The lines of all blocks in order, in pieces of at most `chunk_lines`. Times must be below 2^60."""
    blocks = [block for block in blocks if len(block)]
    if not blocks:
        return
    key = np.concatenate([block.time_ns * _PHASES + block.phase for block in blocks])
    owner = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    first = np.cumsum([0, *(len(block) for block in blocks)])
    order = np.argsort(key, kind="stable")
    for low in range(0, len(order), chunk_lines):
        part = order[low : low + chunk_lines]
        yield _text(blocks, part, owner[part], first)


def _text(blocks: Sequence[Block], part: I64, owner: I64, first: I64) -> bytes:
    pieces = []
    for index in np.unique(owner).tolist():
        where = np.flatnonzero(owner == index)
        pieces.append((where, *_matrix(blocks[index].fields, part[where] - first[index])))
    width = max(characters.shape[1] for _, characters, _ in pieces)
    characters = np.zeros((len(part), width), np.uint8)
    used = np.zeros((len(part), width), np.bool_)
    for where, cells, mask in pieces:
        characters[where, : cells.shape[1]] = cells
        used[where, : cells.shape[1]] = mask
    return characters[used].tobytes()


def _matrix(fields: Sequence[bytes | I64], rows: I64) -> tuple[U8, Mask]:
    """Characters, [rows, width], and a mask of those that are part of the line."""
    parts = [_literal(each, len(rows)) if isinstance(each, bytes) else digits(each[rows]) for each in fields]
    cells, masks = zip(*parts, strict=True)
    return np.concatenate(cells, axis=1), np.concatenate(masks, axis=1)


def _literal(text: bytes, count: int) -> tuple[U8, Mask]:
    cells = np.broadcast_to(np.frombuffer(text, np.uint8), (count, len(text)))
    return cells, np.ones((count, len(text)), np.bool_)


def digits(values: I64) -> tuple[U8, Mask]:
    """Decimal digits of integers ≥ 0, right-aligned, [n, width], and a mask without the leading zeros."""
    width = len(str(int(values.max(initial=0))))
    groups = -(-width // 4)
    cells = np.empty((len(values), groups * 4), np.uint8)
    rest = values
    for group in range(groups - 1, 0, -1):
        rest, low = np.divmod(rest, 10_000)
        cells[:, 4 * group : 4 * group + 4] = _FOUR_DIGITS[low]
    cells[:, :4] = _FOUR_DIGITS[rest]
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    powers[-1] = 0  # a zero is one digit
    return cells[:, groups * 4 - width :], values[:, None] >= powers
