"""Latency and bandwidth of a trace's collectives are found under the noise that measured times have."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.job.collective_table import fits
from harness.analysis.summary import MessageSize

ALPHA_NS, BETA = 20_000.0, 0.04  # 25 GB/s
SIZES = [1024 * 4**k for k in range(10)]  # 1 KiB to 256 MiB


def noisy(seed: int) -> list[MessageSize]:
    """All-reduces of 8 ranks whose times scatter by 5 %."""
    noise = np.random.default_rng(seed).normal(1.0, 0.05, len(SIZES))
    times = [(ALPHA_NS + BETA * size) * n for size, n in zip(SIZES, noise, strict=True)]
    return [
        MessageSize(kind="all_reduce", group_size=8, bytes=size, count=1, median_transfer_ns=round(time))
        for size, time in zip(SIZES, times, strict=True)
    ]


def test_five_percent_of_noise_moves_latency_and_bandwidth_by_no_more_than_a_tenth() -> None:
    for seed in range(300):
        rows = noisy(seed)
        (fit,), withheld = fits(rows)
        assert fit.alpha_ns == pytest.approx(ALPHA_NS, rel=0.1)
        assert fit.beta_ns_per_byte == pytest.approx(BETA, rel=0.1)
        assert not withheld


def test_a_latency_too_short_to_be_seen_is_zero_and_no_reason_to_withhold_the_bandwidth() -> None:
    rows = [row.model_copy(update={"median_transfer_ns": round(row.bytes**1.02)}) for row in noisy(0)[5:]]
    (fit,), _ = fits(rows)
    assert fit.alpha_ns == 0
    assert fit.beta_ns_per_byte == pytest.approx(1.3, rel=0.1)
