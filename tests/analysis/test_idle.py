"""Every idle nanosecond goes to one cause, and to the right one where the answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.process.intervals import length as length_of
from harness.analysis.process.intervals import union
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import RankPart
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import Window
from harness.traces.trace import Activity, HostKind
from tests.synthetic.columns import NCCL, Made


def measured_of(made: Made, window: Window = Window.STEPS) -> tuple[RankPart, MeasuredProcess]:
    (only,) = measured_processes(made.trace(), window, load_rules())
    return only


def activities(made: Made) -> list[dict[str, Any]]:
    """The rows of what the host did, as the Summary has them."""
    return measured_of(made)[0].rows["host_activities"]


def idle_of(made: Made, window: Window = Window.STEPS) -> dict[str, int]:
    (device,) = measured_of(made, window)[0].devices
    causes = {c.cause: c.duration_ns for c in device.idle_causes}
    assert sum(causes.values()) == device.idle_ns
    return causes


def test_a_gap_while_the_loader_works_is_data_loading_and_the_rest_launch_bound() -> None:
    made = Made().step(0, 100, 0).range(20, 50, "DataLoad batch 1")
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=55)
    assert idle_of(made) == {"data loading": 30, "launch-bound": 20}


def test_a_gap_inside_a_synchronising_call_is_synchronisation() -> None:
    made = Made().step(0, 100, 0).call(5, 40, "cudaStreamSynchronize")
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=50)
    assert idle_of(made) == {"synchronisation": 50}


def test_a_watchdog_that_waits_for_an_event_is_no_synchronisation_of_the_training() -> None:
    made = Made().step(0, 100, 0).call(5, 40, "cudaEventSynchronize", thread=77)
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=50)
    assert idle_of(made) == {"launch-bound": 50}


def test_a_blocking_call_of_a_thread_that_launches_counts() -> None:
    made = Made().step(0, 100, 0).call(5, 40, "cudaStreamSynchronize", thread=77)
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=50, launch_thread=77)
    assert idle_of(made) == {"synchronisation": 50}


def test_a_collective_that_was_queued_and_did_not_start_is_waiting_for_communication() -> None:
    made = Made().step(0, 100, 0)
    made.event(0, 40, launch_ns=0).event(70, 100, NCCL, launch_ns=30)
    assert idle_of(made) == {"communication": 30}


def test_prefetching_workers_do_not_make_the_device_wait_for_data() -> None:
    made = Made().step(0, 100, 0).range(0, 100, "DataLoader worker", thread=9)
    made.event(0, 40, launch_ns=0).event(50, 100, launch_ns=45)
    assert idle_of(made) == {"launch-bound": 10}


def test_on_a_cpu_the_interpreter_between_operators_is_launch_bound_and_receiving_is_communication() -> None:
    made = Made().step(0, 100, 0).range(0, 30, "DataLoad batch 0").range(60, 80, "recv forward mb0")
    made.event(30, 55, "aten::mm", activity=Activity.CPU_OP).event(
        80, 95, "aten::mm", activity=Activity.CPU_OP
    )
    assert idle_of(made) == {"data loading": 30, "communication": 20, "launch-bound": 10}


def test_dispatching_a_collective_is_no_work() -> None:
    made = Made().step(0, 100, 0)
    made.event(0, 50, "aten::mm", activity=Activity.CPU_OP)
    made.event(50, 70, "c10d::allreduce_", activity=Activity.CPU_OP)
    made.event(60, 100, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE)
    part, _ = measured_of(made)
    (device,) = part.devices
    assert (device.compute_ns, device.communication_ns, device.idle_ns) == (50, 40, 10)
    assert device.device_kind == "cpu"


spans = st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 150_000)), max_size=6)
CALLS = (
    "cudaStreamSynchronize",
    "cudaMemcpyAsync",
    "cudaMalloc",
    "cudaLaunchKernel",
    "cudaStreamBeginCapture",
)


@given(spans, spans, spans, spans, st.data())
def test_the_causes_sum_to_the_idle_time_and_no_activity_is_longer(
    kernels: list[tuple[int, int]],
    loading: list[tuple[int, int]],
    calls: list[tuple[int, int]],
    functions: list[tuple[int, int]],
    draw: st.DataObject,
) -> None:
    made = Made().step(0, 500_000, 0)
    made.event(0, 10, launch_ns=0)
    for start, length in kernels:
        launch = draw.draw(st.integers(-1, start))
        made.event(start, start + length, draw.draw(st.sampled_from(("mm", NCCL))), launch_ns=launch)
    for start, length in loading:
        made.range(start, start + length, draw.draw(st.sampled_from(("DataLoad", "forward"))))
    for start, length in calls:
        made.call(start, start + length, draw.draw(st.sampled_from(CALLS)))
    for start, length in functions:
        made.host(start, start + length, "train.py(3): main", draw.draw(st.sampled_from(HostKind)))
    part, measured = measured_of(made)
    (device,) = part.devices
    assert sum(c.duration_ns for c in device.idle_causes) == device.idle_ns
    idle = measured.idle[0]
    whole = union(idle.start_ns, idle.end_ns)
    assert length_of(whole) == int((idle.end_ns - idle.start_ns).sum()) == device.idle_ns  # disjoint
    assert (np.diff(idle.start_ns) >= 0).all() and (idle.end_ns > idle.start_ns).all()
    assert all(row["idle_ns"] <= (device.idle_ns or 0) for row in part.rows["host_activities"])


def test_the_longest_gaps_name_the_range_and_the_neighbours() -> None:
    made = Made().step(0, 1000, 0).range(100, 900, "forward")
    made.event(0, 100, "first", launch_ns=0).event(800, 1000, "second", launch_ns=790)
    part, _ = measured_of(made)
    gap = part.devices[0].longest_gaps[0]
    assert (gap.start_ns, gap.duration_ns, gap.cause) == (100, 700, "launch-bound")
    assert (gap.range, gap.before, gap.after) == ("forward", "first", "second")


MS = 1_000_000


def looping(gap: int, count: int = 4) -> Made:
    """Kernels of 1 ms that a host launches every 20 us, and after each group of ten no launch for `gap`."""
    made, at = Made().step(0, count * 20 * MS, 0), 0
    for _ in range(count):
        for i in range(10):
            made.event(at + 30_000 * i + 5_000, at + 30_000 * i + 15_000, launch_ns=at + 30_000 * i)
        at += 300_000 + gap
    return made


def test_launches_one_after_the_other_are_launch_bound_and_a_sleeping_host_is_not() -> None:
    made = looping(gap=5 * MS)
    causes = idle_of(made, Window.GPU)
    assert causes == {"not recorded": 3 * (5 * MS + 20_000), "launch-bound": 4 * 9 * 20_000}


def test_a_blocking_copy_is_named_with_its_call_its_operator_and_its_range() -> None:
    made = Made().step(0, 10 * MS, 0).range(1 * MS, 9 * MS, "move inputs 3")
    made.event(0, MS, launch_ns=0).event(8 * MS, 10 * MS, launch_ns=7 * MS + 995_000)
    made.call(MS, 7 * MS + 990_000, "cudaMemcpyAsync").host(MS, 8 * MS, "aten::to", HostKind.OPERATOR)
    (row,) = activities(made)
    named = [row[field] for field in ("cause", "kind", "what", "call", "operator", "range")]
    assert named == [
        "blocking copy", "call", "cudaMemcpyAsync", "cudaMemcpyAsync", "aten::to", "move inputs #",
    ]  # fmt: skip
    assert (row["idle_ns"], row["count"], row["first_ns"]) == (7 * MS, 1, MS)
