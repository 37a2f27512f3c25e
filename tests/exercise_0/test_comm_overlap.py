"""The overlap test says how much was hidden of what could be, and nothing where the times allow no comparison."""

from __future__ import annotations

from typing import Any

import pytest
from commtests.answer import PARTS, CommAnswer, Overlap, comm_answer

REPETITIONS = 5


def times(*ms: float) -> dict[str, list[float]]:
    """Every repetition took the same: compute, communication, together, and each of them then."""
    return {part: [each] * REPETITIONS for part, each in zip(PARTS, ms, strict=True)}


def answer(values: dict[str, list[float]], device: str = "cuda") -> CommAnswer:
    """For overlap.json of two ranks."""
    ranks = [{"node": 0, "local_rank": k, "host": "host0"} for k in range(2)]
    work = "40 matrix products of 1.1 TFLOP; 20 all-reduces of 25 MiB"
    probe = {"name": work, "unit": "ms", "by": "part", "bound": None, "values": values}
    about: dict[str, Any] = {"backend": "nccl", "device": device, "device_name": "A100", "ranks": ranks}
    return comm_answer("overlap", {**about, "probes": [probe]})


def test_the_share_is_of_the_shorter_of_both() -> None:
    found = Overlap(times(60, 50, 70, 66, 55))
    assert (found.best_ms, found.apart_ms) == (60, 110)
    assert found.share == pytest.approx(40 / 50)
    assert found.slowdowns == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("together", "share"), [(60, 1.0), (58, 1.0), (110, 0.0), (130, 0.0)])
def test_all_and_nothing_are_the_ends(together: float, share: float) -> None:
    assert Overlap(times(60, 50, together, 60, 50)).hidden == share


def test_the_share_pairs_the_times_of_one_repetition() -> None:
    """A machine that is slow for a while is slow for all three: the share stays."""
    data = times(60, 50, 70, 66, 55)
    found = Overlap({part: [ms * k for ms, k in zip(row, (1, 1, 3, 3, 3), strict=True)] for part, row in data.items()})
    assert [found.share, *found.shares] == pytest.approx([0.8] * 4)


def test_the_sentence_has_the_times_and_the_interference() -> None:
    found = answer(times(60, 50, 70, 69, 50))
    assert found.status == "measured"
    assert found.verdict.startswith(
        "OVERLAP: 80% of the shorter one was hidden (80% to 80%): 70.0 ms together, 60.0 ms at best, 110.0 ms one "
        "after the other; beside each other, computation took 15% longer than alone, communication as long as alone. "
        "In a"
    )
    assert "nothing was hidden: together they took longer" in answer(times(60, 50, 120, 60, 50)).verdict
    assert "only a GPU can show" in answer(times(60, 50, 70, 60, 50), device="cpu").verdict


def test_times_that_allow_no_comparison_are_said() -> None:
    found = answer(times(60, 10, 65, 60, 10))
    assert found.status == "cannot tell" and "computation took 60 ms and communication 10 ms, too" in found.verdict


def test_shares_that_spread_over_half_of_the_range_are_said() -> None:
    data = {**times(60, 50, 70, 66, 55), "together": [60.0, 62.0, 85.0, 108.0, 110.0]}
    assert answer(data).verdict.startswith(
        "OVERLAP: cannot tell: a quarter of the repetitions hid less than 4% and a quarter more than 96%: something"
    )


def test_the_table_fits_a_terminal() -> None:
    lines = answer(times(60, 50, 70, 66, 55)).lines
    assert max(map(len, lines)) < 80
    assert any(line.split() == ["both", "together", "70.0", "70.0", "to", "70.0"] for line in lines)
