"""Estimates of memory beside what the trainings really allocate: one rank of each exercise, tiny and with real memory.

benchmarks/bench_memory.py holds every strategy so, and the 7-billion shapes: docs/theory.md has its table.
"""

from __future__ import annotations

import pytest
from bench_memory import TINY, Row, estimate, measure

pytestmark = [pytest.mark.train, pytest.mark.long]  # of a version of PyTorch; bench_memory.py has more


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("-e 1 -g 4 --mixed-precision", marks=pytest.mark.long),
        "-e 2 -g 4 --mixed-precision --ds-hpz-partition 2",
        pytest.param("-e 3 -g 4 --tp 2 --mixed-precision --activation-checkpointing", marks=pytest.mark.long),
    ],
)
def test_the_bytes_of_a_rank_are_those_that_its_training_allocates(case: str) -> None:
    words = f"{case} {TINY}"
    errors = Row(case, estimate(words, 0), measure(words, 0, fake=False)).errors()
    assert errors == pytest.approx(dict.fromkeys(errors, 1.0), rel=0.1)
