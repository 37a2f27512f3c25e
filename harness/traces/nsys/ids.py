"""nsys' numbers of threads, processes and strings to those of the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import NameTable, compacted, distinct_rows
from harness.traces.database import Database
from harness.traces.trace import I32, I64

_LOW_24_BITS = 0xFFFFFF


def process_of(global_id: I64) -> I64:
    """The pid in nsys' global ids of processes and threads; -1 stays -1."""
    return compacted(np.where(global_id < 0, -1, (global_id >> 24) & _LOW_24_BITS))


def thread_of(global_id: I64) -> I64:
    """The thread id in nsys' global thread ids; -1 stays -1."""
    return compacted(np.where(global_id < 0, -1, global_id & _LOW_24_BITS))


def thread_of_one(global_id: int) -> int:
    """`thread_of` a single id."""
    return global_id & _LOW_24_BITS


def process_of_one(global_id: int) -> int:
    """`process_of` a single id."""
    return (global_id >> 24) & _LOW_24_BITS


def string_ids(database: Database, ids: Iterable[int]) -> dict[int, str]:
    """The strings of some StringIds."""
    return database.texts(ids, "StringIds", "value")


def names_of(
    database: Database,
    names: NameTable,
    ids: NDArray[np.integer],
    default: str,
    cleaned: Callable[[str], str] = str,
) -> I32:
    """StringIds to indices of the trace's names; each text is `cleaned`, and a missing one is `default`."""
    present, rows = distinct_rows(ids)
    texts = string_ids(database, present.tolist())
    index = names.indices(cleaned(texts.get(number, default)) for number in present.tolist())
    return np.take(index, rows)
