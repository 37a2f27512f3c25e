"""The arithmetic of edits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.remove.edits import longest_of


@given(ns=st.lists(st.integers(0, 10**9), min_size=1, max_size=30), share=st.floats(0, 1))
def test_cutting_the_longest_saves_what_is_asked(ns: list[int], share: float) -> None:
    less = int(share * sum(ns))
    most = longest_of(np.array(ns), less)
    saved = sum(max(each - most, 0) for each in ns)
    assert less <= saved <= less + len(ns), "whole nanoseconds"
