"""Whole integer columns directly from an SQLite file's pages, many rows at a time.

SQLite's own interface returns one value at a time, which takes most of the time of a large export. The file format is
public and stable (sqlite.org/fileformat2.html, sections 1.5, 1.6 and 2). Only the part that nsys writes is read here;
for any other content OtherFormat is raised, and the caller uses SQLite.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I64

_INTERIOR, _LEAF = 5, 13  # b-tree pages of tables with row ids
_PAGES_AT_ONCE = 256
_SPARE = 32  # zeros after the pages, so that a number at their end can be read without a check
_DEEPEST = 20  # the most levels that SQLite allows in a b-tree

# Bytes of a value by its serial type, 0 to 11; larger types are blobs and texts.
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], np.int64)
_FLOAT, _RESERVED, _FIRST_BLOB = 7, 10, 12
_ONE = 9  # the serial type that is the number 1

Bytes = NDArray[np.uint8]


class OtherFormat(Exception):
    """The file holds something that this module does not read."""


class Pages:
    """An SQLite file's pages."""

    def __init__(self, path: Path) -> None:
        self.read_bytes = 0  # of the table that is being read
        self.share_read = 0.0
        self._left = 0  # pages that the table may still have
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        head = self._map[:100]
        size = int.from_bytes(head[16:18], "big")
        self._page_bytes = 65536 if size == 1 else size
        self._usable_bytes = self._page_bytes - head[20]
        if len(self._map) % self._page_bytes:
            raise OtherFormat
        self._pages: Bytes = np.frombuffer(self._map, np.uint8).reshape(-1, self._page_bytes)

    def columns(self, root: int, wanted: Sequence[int]) -> Iterator[list[I64]]:
        """The columns at the ascending positions `wanted` of the table whose b-tree starts at page `root`; NULL is -1.
        Some thousand rows at a time. Raises OtherFormat: a value is no integer, or the pages are not as expected."""
        self._left = len(self._pages)
        leaves = self._leaves(root)
        for begin in range(0, len(leaves), _PAGES_AT_ONCE):
            rows = self._rows(leaves[begin : begin + _PAGES_AT_ONCE], wanted)
            self.share_read = min(1.0, (begin + _PAGES_AT_ONCE) / len(leaves))
            self.read_bytes = int(self.share_read * len(leaves)) * self._page_bytes
            yield rows
            self._map.madvise(mmap.MADV_DONTNEED)  # the page cache may keep them; this process need not

    def _page(self, number: int) -> Bytes:
        if not 1 < number <= len(self._pages):
            raise OtherFormat
        page: Bytes = self._pages[number - 1]
        return page

    def _leaves(self, root: int, depth: int = 0) -> I64:
        """Numbers of the leaf pages, in the order of the rows. A page occurs once, or pages refer to each other in
        circles."""
        page = self._page(root)
        if page[0] == _LEAF:
            return np.array([root], np.int64)
        cells = _big_endian(page[12 : 12 + 2 * _big_endian(page[3:5], 2)[0]], 2)
        if page[0] != _INTERIOR or depth > _DEEPEST or cells.max(initial=0) > self._page_bytes - 4:
            raise OtherFormat
        children = [_big_endian(page[cells[:, None] + np.arange(4)].ravel(), 4), _big_endian(page[8:12], 4)]
        numbers = np.concatenate(children)
        self._left -= len(numbers)
        if self._left < 0:
            raise OtherFormat
        if self._page(int(numbers[0]))[0] == _LEAF:
            return numbers
        return np.concatenate([self._leaves(number, depth + 1) for number in numbers.tolist()])

    def _rows(self, leaves: I64, wanted: Sequence[int]) -> list[I64]:
        if leaves.min() < 2 or leaves.max() > len(self._pages):
            raise OtherFormat
        flat = np.concatenate([self._pages[leaves - 1].ravel(), np.zeros(_SPARE, np.uint8)])
        bases = np.arange(len(leaves)) * self._page_bytes
        if (flat[bases] != _LEAF).any():
            raise OtherFormat
        page, at = self._cells(flat, bases)
        payload, at = _varint(flat, at)
        if int(payload.max(initial=0)) > self._usable_bytes - 35:
            raise OtherFormat  # a row with overflow pages
        _, at = _varint(flat, at)
        if (at + payload > bases[page] + self._page_bytes).any():
            raise OtherFormat
        return _values(flat, at, at + payload, wanted)

    def _cells(self, flat: Bytes, bases: I64) -> tuple[I64, I64]:
        """The page of each row, by its position in `bases`, and where the row begins."""
        counts = (flat[bases + 3].astype(np.int64) << 8) | flat[bases + 4]
        first = np.cumsum(counts) - counts
        page = np.repeat(np.arange(len(bases)), counts)
        if int(counts.max()) * 2 + 8 > self._page_bytes:
            raise OtherFormat
        pointer = bases[page] + 8 + 2 * (np.arange(len(page)) - first[page])
        begin = (flat[pointer].astype(np.int64) << 8) | flat[pointer + 1]
        if (begin >= self._page_bytes).any():
            raise OtherFormat
        return page, bases[page] + begin


def _big_endian(octets: Bytes, width: int) -> I64:
    return np.frombuffer(octets.tobytes(), f">u{width}").astype(np.int64)


def _varint(flat: Bytes, at: I64) -> tuple[I64, I64]:
    """SQLite's numbers of variable length at the positions `at`, and the positions after them."""
    byte = flat[at].astype(np.int64)
    value, after = byte & 0x7F, at + 1
    going = np.flatnonzero(byte >= 0x80)
    for _ in range(7):
        if len(going) == 0:
            return value, after
        byte = flat[after[going]].astype(np.int64)
        value[going] = (value[going] << 7) | (byte & 0x7F)
        after[going] += 1
        going = going[byte >= 0x80]
    raise OtherFormat


def _values(flat: Bytes, at: I64, end: I64, wanted: Sequence[int]) -> list[I64]:
    """The wanted columns of the records at `at`, from the header's types and the body together."""
    header_bytes, type_at = _varint(flat, at)
    body = header_end = at + header_bytes
    if (header_end > end).any():
        raise OtherFormat
    words = np.ndarray((len(flat) - 7,), ">i8", buffer=flat, strides=(1,))
    columns = []
    for position in range(wanted[-1] + 1):
        kind, type_at = _varint(flat, np.minimum(type_at, end))
        kind[type_at > header_end] = 0  # a row written before the column was added
        short = kind < _FIRST_BLOB
        size = _SIZES[kind] if short.all() else np.where(short, _SIZES[kind * short], (kind - 12) >> 1)
        if position in wanted:
            columns.append(_integers(words, body, kind, size))
        body = body + size
        if (body > end).any():
            raise OtherFormat
    return columns


def _integers(octets: NDArray[np.int64], body: I64, width_kind: I64, size: I64) -> I64:
    if ((width_kind == _FLOAT) | (width_kind >= _RESERVED)).any():
        raise OtherFormat
    value = octets[body].astype(np.int64) >> (64 - 8 * size).clip(0, 63)
    stored = size > 0
    return value if stored.all() else np.where(stored, value, np.where(width_kind == 0, -1, width_kind == _ONE))
