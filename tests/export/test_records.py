"""Columns become exactly the text that formatting each number would give, in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.export.prv_blocks import RecordBlock, digits, lines

NUMBERS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 2**60)), min_size=1, max_size=30)


@settings(deadline=None)  # no timed tests: this machine may be busy
@given(NUMBERS)
def test_digits_are_those_of_str(values: list[int]) -> None:
    cells, used = digits(np.array(values, np.int64))
    assert [bytes(c[u]).decode() for c, u in zip(cells, used, strict=True)] == [str(value) for value in values]


@settings(deadline=None)  # no timed tests: this machine may be busy
@given(NUMBERS, NUMBERS, st.integers(1, 7))
def test_blocks_of_different_shapes_are_merged_in_time_order(left: list[int], right: list[int], chunk: int) -> None:
    left, right = [value >> 5 for value in left], [value >> 5 for value in right]
    a, b = np.array(left, np.int64), np.array(right, np.int64)
    blocks = [
        RecordBlock(a, np.full(len(a), 3), [b"2:", a, b"\n"]),
        RecordBlock(b, np.full(len(b), 0), [b"1:", b, b":end:", b * 2, b"\n"]),
    ]
    wanted = sorted(
        [(value, 3, 0, i, f"2:{value}\n") for i, value in enumerate(left)]
        + [(value, 0, 1, i, f"1:{value}:end:{value * 2}\n") for i, value in enumerate(right)]
    )
    got = b"".join(lines(blocks, chunk)).decode()
    assert got == "".join(line for *_, line in wanted)


@pytest.mark.parametrize("blocks", [[], [RecordBlock(np.array([], np.int64), np.array([], np.int64), [b"x"])]])
def test_nothing_gives_no_text(blocks: list[RecordBlock]) -> None:
    assert b"".join(lines(blocks)) == b""
