"""Each kernel belongs to the innermost range open at its launch, found without walking a stack."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.process.intervals import nest, owners_of_events
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.part import tables_of
from harness.analysis.process.ranges import project, range_label, range_table
from harness.analysis.summary import Window
from harness.traces.trace import RangeKind
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import MAIN, NCCL, Made

AUTOGRAD = 2


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 60, depth: int = 0) -> list[tuple[int, int]]:
    """Properly nested (start, end) pairs inside [low, high)."""
    pairs = []
    at = low
    while at < high and draw(st.booleans()):
        start = draw(st.integers(at, high - 1))
        end = draw(st.integers(start + 1, high))
        pairs.append((start, end))
        if depth < 3 and end - start > 1:
            pairs += draw(nested(start, end, depth + 1))
        at = end
    return pairs


anything = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=10)


def brute_owner(rows: list[tuple[int, int]], moment: int) -> int:
    """The open range that started last; of equal starts the shorter, then the later row."""
    open_ = [(s, -e, i) for i, (s, e) in enumerate(rows) if s <= moment < e]
    return max(open_)[2] if open_ else -1


def check(pairs: list[tuple[int, int]]) -> None:
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


@given(nested())
def test_the_owner_of_a_moment_is_the_innermost_nested_range(pairs: list[tuple[int, int]]) -> None:
    check(pairs)


@given(anything)
def test_ranges_that_overlap_without_nesting_still_have_one_owner_at_each_moment(pairs: list[tuple[int, int]]) -> None:
    check(pairs)


def launch_everywhere(made: Made) -> tuple[Any, Any, list[str | None]]:
    trace = made.trace()
    nesting = nest(trace.ranges, trace.events, MAIN)
    owner = owners_of_events(trace.events, nesting)
    return trace, nesting, [trace.names[trace.ranges.name[o]] if o >= 0 else None for o in owner]


def test_a_kernel_launched_by_autograds_thread_belongs_to_the_main_threads_range() -> None:
    made = Made().range(0, 100, "batch_0").range(40, 90, "backward")
    made.event(200, 210, launch_ns=50, launch_thread=AUTOGRAD)
    made.event(300, 310, launch_ns=10)
    made.event(400, 410, launch_ns=150)
    assert launch_everywhere(made)[2] == ["backward", "batch_0", None]


def test_a_threads_own_range_wins_over_the_main_threads() -> None:
    made = Made().range(0, 100, "backward").range(20, 60, "hook", thread=AUTOGRAD)
    made.event(200, 210, launch_ns=30, launch_thread=AUTOGRAD)
    made.event(300, 310, launch_ns=70, launch_thread=AUTOGRAD)
    assert launch_everywhere(made)[2] == ["hook", "backward"]


def test_a_range_ends_before_the_launch_at_its_end_and_start_end_ranges_own_nothing() -> None:
    made = Made().range(0, 50, "forward").range(50, 99, "backward")
    made.range(0, 99, "cross-thread", kind=RangeKind.START_END)
    made.event(200, 210, launch_ns=50)
    assert launch_everywhere(made)[2] == ["backward"]


def test_projection_counts_kernels_once_for_each_range_around_them() -> None:
    made = Made().range(0, 100, "batch_0").range(10, 40, "forward").range(200, 300, "batch_1")
    made.event(1000, 1010, launch_ns=20)  # forward
    made.event(1020, 1050, launch_ns=50)  # batch_0 itself
    made.event(1100, 1107, launch_ns=210)  # batch_1
    trace, nesting, _ = launch_everywhere(made)
    owner = owners_of_events(trace.events, nesting)
    sums = project(trace.ranges, trace.names, nesting, (trace.events, owner, np.ones(3, bool)), [])
    rows = {row.name: row for row in range_table(sums)}
    batch, forward = rows["batch_#"], rows["forward"]
    assert (batch.instances, batch.kernels, batch.kernel_ns, batch.own_kernel_ns) == (2, 3, 47, 37)
    assert (forward.instances, forward.kernels, forward.kernel_ns, forward.own_kernel_ns) == (1, 1, 10, 10)
    assert (batch.host_ns, batch.device_span_ns) == (200, 50 + 7)


def test_a_range_inside_one_of_the_same_name_is_not_counted_twice() -> None:
    made = Made().range(0, 100, "loss").range(10, 40, "loss").event(500, 510, launch_ns=20)
    trace, nesting, _ = launch_everywhere(made)
    owner = owners_of_events(trace.events, nesting)
    (row,) = range_table(project(trace.ranges, trace.names, nesting, (trace.events, owner, np.ones(1, bool)), []))
    assert (row.instances, row.host_ns, row.kernels, row.kernel_ns) == (1, 100, 1, 10)


def test_a_ranges_idle_time_includes_that_of_the_ranges_inside_it() -> None:
    made = Made().step(0, 100, 0).range(10, 90, "batch").range(20, 60, "forward")
    made.range(30, 40, "batch").range(20, 60, "hook", thread=AUTOGRAD)
    made.event(0, 25, launch_ns=0).event(45, 70, launch_ns=44).event(80, 100, launch_ns=70)
    (part,) = measure_trace(made.trace(), Window.GPU, load_rules())
    idle = {row.name: (row.idle_ns, row.idle_inside_ns) for row in range_table(tables_of(part).ranges)}
    assert idle == {"ProfilerStep#": (0, 30), "batch": (20, 30), "forward": (10, 20), "hook": (0, 0)}


def test_device_time_goes_to_the_phase_of_training_that_launched_it() -> None:
    made = Made().range(0, 100, "batch_0").range(10, 40, "forward").range(20, 30, "layer 3")
    made.range(50, 90, "backward").range(100, 120, "Optimizer.step#AdamW.step")
    made.event(1000, 1010, launch_ns=25)  # in a layer of the forward
    made.event(1020, 1050, launch_ns=60, launch_thread=AUTOGRAD)
    made.event(1060, 1065, NCCL, launch_ns=70)
    made.event(1100, 1107, launch_ns=110).event(1200, 1201, launch_ns=95)
    (part,) = measure_trace(made.trace(), Window.GPU, load_rules())
    assert part.phases == {
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
    trace = made.trace()
    (part,) = measure_trace(trace, Window.GPU, load_rules())
    assert part.phases == {"backward": (2, 40, 10, 30), "other": (1, 7, 7, 0)}
    nesting = nest(trace.ranges, trace.events, MAIN)
    owner = owners_of_events(trace.events, nesting)
    sums = project(trace.ranges, trace.names, nesting, (trace.events, owner, np.ones(3, bool)), [])
    kernels = {row.name: (row.kernels, row.kernel_ns, row.own_kernel_ns) for row in range_table(sums)}
    assert kernels["backward"] == (2, 40, 10)
    assert kernels["batch_#"] == (3, 47, 0)
    assert sum(own for _, _, own in kernels.values()) == 47


def test_names_lose_their_arguments_and_counters() -> None:
    assert range_label("aten::mul, seq = 12, op_id = 9") == "aten::mul"
    assert range_label("ProfilerStep#7") == "ProfilerStep#"
    assert range_label("forward mb3 stage1") == "forward mb# stage1"
    assert range_label("epoch_0-rank_12") == "epoch_#-rank_#"
