"""A clock that began after the recording: times are below zero, and -1 must not mean "not known"."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.traces import Trace, open_trace
from tests.synthetic import kineto, nsys
from tests.traces.told import told

BASE = 1_700_000_000_000_000_000


def recorded_from(folder: Path, first_ns: int, layout: str) -> Trace:
    """A step whose first time is this. Of nsys: with a counter, a range that never ends, and, for -5,001, a launch a
    nanosecond before zero."""
    if layout != "nsys":
        footer = {"baseTimeNanoseconds": BASE}
        return open_trace(kineto.kineto(folder / "t.json", kineto.gpu_step(first_ns), layout, footer=footer))
    made = nsys.Nsys()
    made.range("batch_0", first_ns, 10_000)
    made.range("open", first_ns + 4_000, None, kind=60)
    made.call("cudaLaunchKernel_v7000", first_ns + 5_000, 500, correlation=21)
    made.kernel("void gemm<float>(float*)", first_ns + 6_000, 3_000, correlation=21)
    made.sampled(0, 50, first_ns + 7_000)
    return open_trace(made.saved(folder / "t.sqlite"))


@pytest.mark.parametrize("first_ns", [-1_000_000, -2_002, -5_001])
@pytest.mark.parametrize("layout", [*kineto.LAYOUTS, "nsys"])
def test_a_clock_that_began_after_the_recording_moves_all_times_alike(
    tmp_path: Path, first_ns: int, layout: str
) -> None:
    plain, below = (told(recorded_from(tmp_path, first, layout)) for first in (0, first_ns))
    assert (plain["clock"][1], below["clock"][1]) == (BASE, BASE + first_ns)
    ignored = {"clock": None} | ({"range spans": None} if layout == "nsys" else {})  # an open range ends at 0 at least
    assert below | ignored == plain | ignored
