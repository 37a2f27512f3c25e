"""The overlap test says how much was hidden of what could be, and nothing where the times allow no comparison."""

from __future__ import annotations

import json
from typing import Any

import pytest
from commtests.overlap_answer import TIMES, overlap_lines, overlap_of, overlap_sentence

REPETITIONS = 5


def measured(*times_ms: float, device: str = "cuda") -> dict[str, Any]:
    """overlap.json where every repetition took the same: compute, communication, together, and each in it."""
    about = {"world_size": 8, "backend": "nccl", "device": device, "device_name": "A100"}
    sizes = {"products": 40, "flop_per_product": 1.1e12, "messages": 20, "message_bytes": 25 * 1024**2}
    return {**about, **sizes, "ms": {name: [ms] * REPETITIONS for name, ms in zip(TIMES, times_ms, strict=True)}}


def test_the_share_is_of_the_shorter_of_both() -> None:
    found = overlap_of(measured(60, 50, 70, 66, 55)["ms"])
    assert (found.ideal_ms, found.apart_ms) == (60, 110)
    assert found.share == pytest.approx(40 / 50)
    assert found.compute_slowdown == pytest.approx(0.1)
    assert found.communication_slowdown == pytest.approx(0.1)


@pytest.mark.parametrize(("together", "share"), [(60, 1.0), (58, 1.0), (110, 0.0), (130, 0.0)])
def test_all_and_nothing_are_the_ends(together: float, share: float) -> None:
    assert overlap_of(measured(60, 50, together, 60, 50)["ms"]).hidden == share


def test_the_share_pairs_the_times_of_one_repetition() -> None:
    """A machine that is slow for a while is slow for all three: the share stays."""
    data = measured(60, 50, 70, 66, 55)
    data["ms"] = {
        name: [ms * slow for ms, slow in zip(row, (1, 1, 3, 3, 3), strict=True)] for name, row in data["ms"].items()
    }
    found = overlap_of(data["ms"])
    assert [found.share, found.shares.low, found.shares.high] == pytest.approx([0.8, 0.8, 0.8])


def test_the_sentence_has_the_times_and_the_interference() -> None:
    assert overlap_sentence(measured(60, 50, 70, 69, 50)).startswith(
        "OVERLAP: 80% of the shorter one was hidden (80% to 80%): 70.0 ms together, 60.0 ms at best, 110.0 ms one "
        "after the other; beside each other, computation took 15% longer than alone, communication as long as alone. "
        "In a"
    )
    assert "nothing was hidden: together they took longer" in overlap_sentence(measured(60, 50, 120, 60, 50))
    assert "only a GPU can show" in overlap_sentence(measured(60, 50, 70, 60, 50, device="cpu"))


@pytest.mark.parametrize("times", [(60, 10, 65, 60, 10), (0.5, 0.5, 0.6, 0.5, 0.5)])
def test_times_that_allow_no_comparison_are_said(times: tuple[float, ...]) -> None:
    assert "cannot tell: computation took" in overlap_sentence(measured(*times))


def test_shares_that_spread_over_half_of_the_range_are_said() -> None:
    data = measured(60, 50, 70, 66, 55)
    data["ms"]["together"] = [60, 62, 85, 108, 110]
    assert "cannot tell: a quarter of the repetitions hid less than 4% and a quarter more than 96%" in overlap_sentence(
        data
    )


def test_the_table_fits_a_terminal_and_a_single_process_has_none() -> None:
    lines = overlap_lines(measured(60, 50, 70, 66, 55))
    assert max(map(len, lines)) < 80
    assert any(line.split() == ["both", "together", "70.0", "70.0", "to", "70.0"] for line in lines)
    alone = json.loads('{"reason": "communication needs two processes"}')
    assert overlap_lines(alone) == [] and overlap_sentence(alone).endswith(
        "cannot tell: communication needs two processes."
    )
