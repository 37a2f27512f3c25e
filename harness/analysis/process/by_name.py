"""Rows chosen by their names; each distinct name is judged once. Columns of millions of rows have few names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import I32


def used(codes: I32) -> list[int]:
    """The distinct name indices that occur (all >= 0), ascending."""
    return [int(i) for i in np.flatnonzero(np.bincount(codes))] if len(codes) else []


def matching(codes: I32, names: list[str], is_wanted: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which of n rows have a name for which `is_wanted` returns something true."""
    table = np.zeros(len(names) + 1, np.bool_)
    for i in used(codes):
        table[i] = bool(is_wanted(names[i]))
    return table[codes]
