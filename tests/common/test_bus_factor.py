"""Bus bandwidth is nccl-tests'."""

from __future__ import annotations

import pytest

from harness.common.alpha_beta import bus_factor


@pytest.mark.parametrize(
    ("collective", "two", "eight"),
    [
        ("all_reduce", 1.0, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("all_to_all", 0.5, 0.875),
        ("reduce", 1.0, 1.0),
        ("broadcast", 1.0, 1.0),
        ("send_recv", 1.0, 1.0),
    ],
)
def test_bus_bandwidth_is_nccl_tests(collective: str, two: float, eight: float) -> None:
    assert bus_factor(collective, 2) == two
    assert bus_factor(collective, 8) == eight


def test_a_factor_that_needs_the_groups_size_is_not_guessed() -> None:
    assert bus_factor("all_reduce", None) is None
    assert bus_factor("broadcast", None) == 1.0
