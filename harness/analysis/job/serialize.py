"""Ranks merged so far as bytes, on their way from one reducer to the next: JSON for what people could read, compressed
columns for the tables."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections import Counter
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from harness.analysis.job.blocks import Block
from harness.analysis.job.partial_merge import JobMerge
from harness.analysis.job.pop import DeviceTimes
from harness.analysis.job.sums import Sums
from harness.analysis.process.collective_rows import Key
from harness.analysis.process.part import RankPart
from harness.analysis.summary import Copy
from harness.traces.trace import I64

_RANKS = TypeAdapter(list[RankPart])
_COPIES = TypeAdapter(list[Copy])


def serialize_merge(reduced: JobMerge) -> bytes:
    """As bytes, with a checksum of each column."""
    columns = {"ranks": np.frombuffer(_RANKS.dump_json(reduced.ranks, exclude_defaults=True), np.uint8)}
    head = {"sums": _sums_as_json(reduced.sums, columns), "blocks": _blocks_as_json(reduced.blocks, columns)}
    columns["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **{name: _compressed(column) for name, column in columns.items()})
    return packed.getvalue()


def deserialize_merge(packed: bytes) -> JobMerge:
    """The inverse of `serialize_merge`. Raises ValueError: the bytes are damaged."""
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as columns:
            head = json.loads(zlib.decompress(columns["head"]))
            blocks = [_block(i, own, columns) for i, own in enumerate(head["blocks"])]
            ranks = _RANKS.validate_json(zlib.decompress(columns["ranks"]))
            return JobMerge(ranks, _sums(head["sums"], columns), blocks)
    except (zipfile.BadZipFile, zlib.error, KeyError, IndexError, TypeError, EOFError) as error:
        raise ValueError(f"damaged: {error}") from None


def _compressed(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(zlib.compress(column.tobytes(), 1), np.uint8)


def _read(columns: Any, name: str) -> I64:
    return np.frombuffer(zlib.decompress(columns[name]), "<i8").astype(np.int64)


def _sums_as_json(sums: Sums, columns: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    for i, table in enumerate(sums.times.of_steps.values()):
        columns[f"times{i}"] = table.astype("<i8")
    return {
        "kernels": [[*name, *row] for name, row in sums.kernels.items()],
        "ranges": sums.ranges,
        "phases": sums.phases,
        "kinds": [[*label, *row] for label, row in sums.kinds.items()],
        "causes": sums.causes,
        "copies": _COPIES.dump_python(sums.copies, mode="json"),
        "steps": list(sums.times.of_steps),
        "unknown": sums.times.unknown,
    }


def _sums(head: dict[str, Any], columns: Any) -> Sums:
    names = [tuple(each) for each in head["steps"]]
    tables = [_read(columns, f"times{i}").reshape(-1, 1 + len(each), 3) for i, each in enumerate(names)]
    in_graphs, holes = head["unknown"]
    return Sums(
        kernels={(name, kind, of): row for name, kind, of, *row in head["kernels"]},
        ranges={name: tuple(row) for name, row in head["ranges"].items()},
        phases={name: tuple(row) for name, row in head["phases"].items()},
        kinds={(kind, precision): (count, ns) for kind, precision, count, ns in head["kinds"]},
        causes=Counter(head["causes"]),
        copies=_COPIES.validate_python(head["copies"]),
        times=DeviceTimes(dict(zip(names, tables, strict=True)), (in_graphs, holes)),
    )


def _blocks_as_json(blocks: list[Block], columns: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    for i, block in enumerate(blocks):
        columns[f"rank{i}"] = np.diff(block.rank, prepend=0).astype("<i8")
        columns[f"row{i}"] = np.stack([block.key, block.phase, block.row]).astype("<i8")
        start = np.diff(block.start_ns, axis=1, prepend=0)
        columns[f"table{i}"] = np.stack([block.bytes, start, block.end_ns - block.start_ns]).astype("<i8")
    return [[[k.kind, k.group, k.group_size, k.dtype, k.ranks] for k in block.keys] for block in blocks]


def _block(i: int, keys: list[Any], columns: Any) -> Block:
    rank = np.cumsum(_read(columns, f"rank{i}"))
    key, phase, row = _read(columns, f"row{i}").reshape(3, -1)
    size, start, took = _read(columns, f"table{i}").reshape(3, len(rank), len(key))
    start_ns = np.cumsum(start, axis=1)
    return Block(
        keys=[Key(kind, group, n, dtype, tuple(r) if r else None) for kind, group, n, dtype, r in keys],
        key=key.astype(np.int32),
        phase=phase.astype(np.int8),
        row=row,
        rank=rank,
        bytes=size,
        start_ns=start_ns,
        end_ns=start_ns + took,
    )
