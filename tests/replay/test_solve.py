"""Moments by levels are those of a plain walk over the arcs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.replay.graph.graph import NoOrderError, schedule, solve


@given(st.data())
def test_levels_give_the_longest_paths(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(2, 12))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda p: p[0] < p[1])
    arcs = data.draw(st.lists(pairs, min_size=1, max_size=30))
    lengths = np.array(data.draw(st.lists(st.integers(-5, 50), min_size=2 * len(arcs), max_size=2 * len(arcs))))
    source, target = (np.array(column) for column in zip(*arcs, strict=True))
    roots = np.arange(nodes) * 3
    found = solve(schedule(nodes, source, target), roots, lengths.reshape(2, -1))
    for variant in (0, 1):
        moments = roots.tolist()
        own = lengths.reshape(2, -1)[variant]
        for node in range(nodes):
            into = [moments[s] + int(w) for (s, t), w in zip(arcs, own, strict=True) if t == node]
            moments[node] = max(into, default=moments[node])
        assert found[variant].tolist() == moments


def test_arcs_in_a_circle_have_no_answer() -> None:
    with pytest.raises(NoOrderError, match="2 of 3 moments"):
        schedule(3, np.array([0, 1, 2]), np.array([1, 2, 1]))
