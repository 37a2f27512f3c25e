"""Each kernel belongs to the innermost range open at its launch, found without walking a stack."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.process.intervals import nest, owners_of_events
from harness.analysis.process.part import tables_of
from harness.analysis.process.ranges import device_spans, project, range_table
from harness.analysis.summary import RangeTime, Window
from harness.traces.trace import RangeKind
from tests.analysis.measuring import part_of
from tests.synthetic.columns import MAIN, NCCL, Made

AUTOGRAD = 2


anything = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=10)


def brute_owner(rows: list[tuple[int, int]], moment: int) -> int:
    """The open range that started last; of equal starts the shorter, then the later row."""
    open_ = [(s, -e, i) for i, (s, e) in enumerate(rows) if s <= moment < e]
    return max(open_)[2] if open_ else -1


@given(anything)
def test_the_owner_of_a_moment_is_the_innermost_open_range(pairs: list[tuple[int, int]]) -> None:
    """Of ranges that nest, and of those that overlap without nesting."""
    made = Made()
    for i, (start, end) in enumerate(pairs):
        made.range(start, end, f"r{i}")
    trace = made.trace()
    rows = list(zip(trace.ranges.start_ns.tolist(), trace.ranges.end_ns.tolist(), strict=True))
    nesting = nest(trace.ranges, trace.events)
    moments = np.arange(-1, 75)
    expected = [brute_owner(rows, t) for t in moments.tolist()]
    owners = nesting.threads.get(MAIN)
    found = owners.of(moments) if owners is not None else np.full(len(moments), -1)
    assert [rows[i] if i >= 0 else None for i in found] == [rows[i] if i >= 0 else None for i in expected]


def launched(made: Made, *moments: int, thread: int = MAIN) -> Made:
    """Kernels of 10 ns that were launched then, long afterwards."""
    for launch in moments:
        made.event(2000 + 20 * launch, 2010 + 20 * launch, launch_ns=launch, launch_thread=thread)
    return made


BATCH = Made().range(0, 100, "batch_0").range(40, 90, "backward")
HOOKED = Made().range(0, 100, "backward").range(20, 60, "hook", thread=AUTOGRAD)
IN_TURN = Made().range(0, 50, "forward").range(50, 99, "backward")


@pytest.mark.parametrize(
    ("made", "owners"),
    [
        (launched(launched(BATCH, 10, 150), 50, thread=AUTOGRAD), ["batch_0", "backward", None]),
        (launched(HOOKED, 30, 70, thread=AUTOGRAD), ["hook", "backward"]),  # a thread's own range wins
        # a range ends before the launch at its end, and start-end ranges own nothing
        (launched(IN_TURN.range(0, 99, "cross-thread", kind=RangeKind.START_END), 50), ["backward"]),
    ],
)
def test_a_kernel_belongs_to_the_innermost_range_at_its_launch(made: Made, owners: list[str | None]) -> None:
    trace = made.trace()
    owner = owners_of_events(trace.events, nest(trace.ranges, trace.events, MAIN))
    assert [trace.names[trace.ranges.name[o]] if o >= 0 else None for o in owner] == owners


def ranges_of(made: Made) -> dict[str, RangeTime]:
    return {row.name: row for row in range_table(tables_of(part_of(made, Window.GPU)).ranges)}


def test_projection_counts_kernels_once_for_each_range_around_them_and_once_for_each_name() -> None:
    made = Made().range(0, 100, "batch_0").range(10, 40, "forward").range(200, 300, "batch_1").range(20, 30, "forward")
    made.event(1000, 1010, launch_ns=20).event(1020, 1050, launch_ns=50).event(1100, 1107, launch_ns=210)
    rows = ranges_of(made)
    batch, forward = rows["batch_#"], rows["forward"]
    assert (batch.instances, batch.kernels, batch.kernel_ns, batch.host_ns) == (2, 3, 47, 200)
    assert (forward.instances, forward.kernels, forward.kernel_ns, forward.host_ns) == (1, 1, 10, 30)


def test_a_range_has_the_messages_of_those_inside_it_and_spans_their_kernels() -> None:
    made = Made().range(0, 100, "batch").range(10, 40, "forward").range(20, 30, "layer")
    made.event(1000, 1010, launch_ns=25).event(1020, 1050, launch_ns=12)
    trace = made.trace()
    nesting = nest(trace.ranges, trace.events, MAIN)
    owner = owners_of_events(trace.events, nesting)
    begun_by, sizes = np.array([2, 2, 1, -1]), np.array([5, -1, 7, 100])
    inside = np.ones(len(owner), np.bool_)
    found = project(trace.ranges, trace.names, nesting, (trace.events, owner, inside), [], messages=(begun_by, sizes))
    assert {name: sums[-2:] for name, sums in found.items()} == {"batch": (3, 12), "forward": (3, 12), "layer": (2, 5)}
    first, last = device_spans(trace.events, owner, nesting.parent, np.arange(3))
    assert list(zip(first, last, strict=True)) == [(1000, 1050), (1000, 1050), (1000, 1010)]


def test_a_ranges_idle_time_includes_that_of_the_ranges_inside_it() -> None:
    made = Made().step(0, 100, 0).range(10, 90, "batch").range(20, 60, "forward")
    made.range(30, 40, "batch").range(20, 60, "hook", thread=AUTOGRAD)
    made.event(0, 25, launch_ns=0).event(45, 70, launch_ns=44).event(80, 100, launch_ns=70)
    idle = {name: (row.idle_ns, row.idle_inside_ns) for name, row in ranges_of(made).items()}
    assert idle == {"ProfilerStep#": (0, 30), "batch": (20, 30), "forward": (10, 20), "hook": (0, 0)}


def test_device_time_goes_to_the_phase_of_training_that_launched_it() -> None:
    made = Made().range(0, 100, "batch_0").range(10, 40, "forward").range(20, 30, "layer 3")
    made.range(50, 90, "backward").range(100, 120, "Optimizer.step#AdamW.step")
    made.event(1000, 1010, launch_ns=25)  # in a layer of the forward
    made.event(1020, 1050, launch_ns=60, launch_thread=AUTOGRAD)
    made.event(1060, 1065, NCCL, launch_ns=70)
    made.event(1100, 1107, launch_ns=110).event(1200, 1201, launch_ns=95)
    assert part_of(made, Window.GPU).phases == {
        "forward": (1, 10, 10, 0),
        "backward": (2, 35, 30, 5),
        "optimizer": (1, 7, 7, 0),
        "other": (1, 1, 1, 0),
    }


def test_ranges_of_autograds_thread_lie_in_the_main_threads_backward() -> None:
    """The ranges of NCCL, cuBLAS and hooks must not take device time from the backward pass."""
    made = Made().range(0, 100, "batch_0").range(40, 90, "backward")
    made.range(50, 60, "ncclAllReduce", thread=AUTOGRAD).range(52, 58, "c10d", thread=AUTOGRAD)
    made.range(85, 95, "outlives the backward", thread=AUTOGRAD)
    made.event(1000, 1030, NCCL, launch_ns=55, launch_thread=AUTOGRAD)
    made.event(1040, 1050, launch_ns=70, launch_thread=AUTOGRAD)
    made.event(1060, 1067, launch_ns=93, launch_thread=AUTOGRAD)
    assert part_of(made, Window.GPU).phases == {"backward": (2, 40, 10, 30), "other": (1, 7, 7, 0)}
    rows = ranges_of(made)
    assert (rows["backward"].kernels, rows["backward"].kernel_ns) == (2, 40)
    assert (rows["batch_#"].kernels, rows["batch_#"].kernel_ns) == (3, 47)
