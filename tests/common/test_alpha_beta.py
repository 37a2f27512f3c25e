"""The one line through measured messages finds the latency and the bandwidth that were put in."""

from __future__ import annotations

import numpy as np
import pytest

from harness.common.alpha_beta import fit_alpha_beta

SIZES = [1024 * 4**k for k in range(11)]


@pytest.mark.parametrize(("alpha_ns", "beta"), [(20_000.0, 0.04), (3e6, 10.0), (0.0, 0.5), (5000.0, 0.0)])
def test_the_fit_recovers_latency_and_bandwidth(alpha_ns: float, beta: float) -> None:
    fit = fit_alpha_beta(SIZES, [alpha_ns + beta * size for size in SIZES])
    assert fit is not None
    assert fit.alpha_ns == pytest.approx(alpha_ns, rel=1e-6, abs=1e-3)
    assert fit.beta_ns_per_byte == pytest.approx(beta, rel=1e-6, abs=1e-9)
    assert fit.max_relative_error < 1e-6 and fit.r2_log > 1 - 1e-9


def test_the_fit_holds_under_noise_and_says_how_large_it_was() -> None:
    noise = np.exp(np.random.default_rng(0).normal(0, 0.1, len(SIZES)))
    fit = fit_alpha_beta(SIZES, [(20_000 + 0.04 * size) * n for size, n in zip(SIZES, noise, strict=True)])
    assert fit is not None
    assert fit.alpha_ns == pytest.approx(20_000, rel=0.15)
    assert fit.beta_ns_per_byte == pytest.approx(0.04, rel=0.15)
    assert 0.02 < fit.median_relative_error < 0.2 and fit.r2_log > 0.98


def test_the_fit_never_answers_with_a_negative_latency() -> None:
    fit = fit_alpha_beta([1024, 4096, 16384], [1.0, 100.0, 1000.0])
    assert fit is not None and fit.alpha_ns == 0.0 and fit.beta_ns_per_byte > 0


def test_two_points_are_too_few_for_a_line_to_mean_anything() -> None:
    assert fit_alpha_beta([1, 2], [1.0, 2.0]) is None


def test_a_time_that_the_clock_could_not_show_is_left_out() -> None:
    fit = fit_alpha_beta([8, *SIZES], [0.0, *(100.0 + size for size in SIZES)])
    assert fit is not None
    assert fit.points == len(SIZES)
    assert fit.alpha_ns == pytest.approx(100.0)


def test_one_size_measured_many_times_gives_no_line() -> None:
    assert fit_alpha_beta([1024] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]) is None
