"""Every idle nanosecond goes to one cause, and to the right one where the answer is known."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.process.idle import CAUSES, HostTime, NextEvent, causes_on_cpu, causes_on_gpu
from harness.analysis.process.intervals import Intervals, difference, length, union
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measure_trace
from harness.analysis.summary import Window
from harness.traces.trace import Activity
from tests.synthetic.columns import NCCL, Made


def idle_of(made: Made, window: Window = Window.STEPS) -> dict[str, int]:
    (part,) = measure_trace(made.trace(), window, load_rules())
    (device,) = part.devices
    causes = {c.cause: c.duration_ns for c in device.idle_causes}
    assert sum(causes.values()) == device.idle_ns
    return causes


def test_a_gap_while_the_loader_works_is_data_loading_and_the_rest_launch_bound() -> None:
    made = Made().step(0, 100, 0).range(20, 50, "DataLoad batch 1")
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=55)
    assert idle_of(made) == {"data loading": 30, "launch-bound": 15, "other": 5}


def test_a_gap_inside_a_synchronising_call_is_synchronisation() -> None:
    made = Made().step(0, 100, 0).call(5, 40, "cudaStreamSynchronize")
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=50)
    assert idle_of(made) == {"synchronisation": 30, "launch-bound": 10, "other": 10}


def test_a_watchdog_that_waits_for_an_event_is_no_synchronisation_of_the_training() -> None:
    made = Made().step(0, 100, 0).call(5, 40, "cudaEventSynchronize", thread=77)
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=50)
    assert idle_of(made) == {"launch-bound": 40, "other": 10}


def test_a_blocking_call_of_a_thread_that_launches_counts() -> None:
    made = Made().step(0, 100, 0).call(5, 40, "cudaStreamSynchronize", thread=77)
    made.event(0, 10, launch_ns=0).event(60, 100, launch_ns=50, launch_thread=77)
    assert idle_of(made) == {"synchronisation": 30, "launch-bound": 10, "other": 10}


def test_a_collective_that_was_queued_and_did_not_start_is_waiting_for_communication() -> None:
    made = Made().step(0, 100, 0)
    made.event(0, 40, launch_ns=0).event(70, 100, NCCL, launch_ns=30)
    assert idle_of(made) == {"communication": 30}


def test_prefetching_workers_do_not_make_the_device_wait_for_data() -> None:
    made = Made().step(0, 100, 0).range(0, 100, "DataLoader worker", thread=9)
    made.event(0, 40, launch_ns=0).event(50, 100, launch_ns=45)
    assert idle_of(made) == {"launch-bound": 5, "other": 5}


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
    (part,) = measure_trace(made.trace(), Window.STEPS, load_rules())
    (device,) = part.devices
    assert (device.compute_ns, device.communication_ns, device.idle_ns) == (50, 40, 10)
    assert device.device_kind == "cpu"


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=6)


def to_set(pairs: list[tuple[int, int]]) -> Intervals:
    return union(np.array([p[0] for p in pairs], np.int64), np.array([sum(p) for p in pairs], np.int64))


@given(spans, spans, spans, spans, st.data())
def test_the_causes_of_each_gap_sum_to_its_length(
    gaps: list[tuple[int, int]],
    data: list[tuple[int, int]],
    blocked: list[tuple[int, int]],
    waiting: list[tuple[int, int]],
    draw: st.DataObject,
) -> None:
    idle, loading = to_set(gaps), to_set(data)
    held = difference(to_set(blocked), loading)
    host = HostTime(loading, held, difference(difference(to_set(waiting), loading), held))
    n = len(idle.start)
    launched = np.array(draw.draw(st.lists(st.integers(-1, 60), min_size=n, max_size=n)), np.int64)
    is_comm = np.array(draw.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    on_gpu = causes_on_gpu(idle, NextEvent(launched, is_comm), host)
    on_cpu = causes_on_cpu(idle, host, to_set(waiting), to_set(blocked))
    for causes in (on_gpu, on_cpu):
        assert causes.shape == (n, len(CAUSES))
        assert (causes >= 0).all()
        assert causes.sum(axis=1).tolist() == (idle.end - idle.start).tolist()
    assert int(on_gpu.sum()) == length(idle)


def test_the_longest_gaps_name_the_range_and_the_neighbours() -> None:
    made = Made().step(0, 1000, 0).range(100, 900, "forward")
    made.event(0, 100, "first", launch_ns=0).event(800, 1000, "second", launch_ns=790)
    (part,) = measure_trace(made.trace(), Window.STEPS, load_rules())
    gap = part.devices[0].longest_gaps[0]
    assert (gap.start_ns, gap.duration_ns, gap.cause) == (100, 700, "launch-bound")
    assert (gap.range, gap.before, gap.after) == ("forward", "first", "second")
