"""The line through measured messages finds the latency and bandwidth that were put in; bus factors are nccl-tests'."""

from __future__ import annotations

import numpy as np
import pytest

from harness.common.model.alpha_beta import bus_factor, fit_alpha_beta

SIZES = [1024 * 4**k for k in range(11)]


@pytest.mark.parametrize(
    ("alpha_ns", "beta", "noise", "within"),
    [
        (20_000.0, 0.04, 0.0, 1e-6),
        (3e6, 10.0, 0.0, 1e-6),
        (0.0, 0.5, 0.0, 1e-6),
        (5000.0, 0.0, 0.0, 1e-6),
        (20_000.0, 0.04, 0.1, 0.15),
    ],
)
def test_the_fit_recovers_latency_and_bandwidth_and_says_how_large_the_noise_was(
    alpha_ns: float, beta: float, noise: float, within: float
) -> None:
    factors = np.exp(np.random.default_rng(0).normal(0, noise, len(SIZES)))
    fit = fit_alpha_beta(SIZES, [(alpha_ns + beta * size) * n for size, n in zip(SIZES, factors, strict=True)])
    assert fit is not None
    assert (fit.alpha_ns, fit.beta_ns_per_byte) == pytest.approx((alpha_ns, beta), rel=within, abs=1e-3 * within)
    assert 0.2 * noise <= fit.median_relative_error <= 2 * noise + 1e-6 and fit.r2_log > 0.98


@pytest.mark.parametrize(
    ("sizes", "times", "expected"),
    [
        ([1, 2], [1.0, 2.0], None),  # too few for a line to mean anything
        ([1024] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], None),
        ([1024, 4096, 16384], [1.0, 100.0, 1000.0], (3, 0.0)),  # never a negative latency
        ([8, *SIZES], [0.0, *(100.0 + size for size in SIZES)], (len(SIZES), 100.0)),  # the clock could not show it
    ],
)
def test_what_no_line_describes(sizes: list[int], times: list[float], expected: tuple[int, float] | None) -> None:
    fit = fit_alpha_beta(sizes, times)
    assert (fit is None) == (expected is None)
    if fit is not None:
        assert [fit.points, fit.alpha_ns] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("collective", "two", "eight", "unknown"),
    [
        ("all_reduce", 1.0, 1.75, None),
        ("all_gather", 0.5, 0.875, None),
        ("reduce_scatter", 0.5, 0.875, None),
        ("all_to_all", 0.5, 0.875, None),
        ("reduce", 1.0, 1.0, 1.0),
        ("broadcast", 1.0, 1.0, 1.0),
        ("send_recv", 1.0, 1.0, 1.0),
    ],
)
def test_bus_bandwidth_is_nccl_tests(collective: str, two: float, eight: float, unknown: float | None) -> None:
    assert [bus_factor(collective, ranks) for ranks in (2, 8, None)] == [two, eight, unknown]
