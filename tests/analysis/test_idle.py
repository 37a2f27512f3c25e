"""Every idle nanosecond goes to one cause, and to the right one where the answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.process.host_calls import HostCause
from harness.analysis.process.intervals import length as length_of
from harness.analysis.process.intervals import union
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import RankPart
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import Window
from harness.traces import open_trace
from harness.traces.trace import Activity, HostKind
from tests.real_traces import FOLDER, needs_real_traces, real_trace
from tests.synthetic.columns import GEMM, NCCL, Made


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
    made.event(30, 55, "aten::mm", activity=Activity.CPU_OP).event(80, 95, "aten::mm", activity=Activity.CPU_OP)
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
CALLS = ("cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMalloc", "cudaLaunchKernel", "cudaStreamBeginCapture")


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


def test_memory_that_the_loop_allocates_is_allocation() -> None:
    made = looping(gap=MS).call(300_000 - 15_000, 1_290_000, "cudaMalloc")
    assert idle_of(made, Window.GPU)["allocation"] >= 950_000


def test_a_first_launch_that_takes_long_is_first_use_and_a_later_one_is_not() -> None:
    def launched(kernel: str) -> Made:
        made = looping(gap=5 * MS).call(300_000, 5 * MS, "cudaLaunchKernel")
        return made.event(5 * MS + 10_000, 5 * MS + 20_000, kernel, launch_ns=300_000)

    first = idle_of(launched("new_kernel"), Window.GPU)
    assert first["first use"] == 5 * MS - 300_000
    assert "first use" not in idle_of(launched(GEMM), Window.GPU)
    (row,) = (r for r in activities(launched("new_kernel")) if r["cause"] == "first use")
    assert (row["kind"], row["what"]) == ("call", "cudaLaunchKernel")


def test_a_copy_for_item_is_a_synchronisation_and_the_launch_after_it_too() -> None:
    made = Made().step(0, 10 * MS, 0)
    made.event(0, MS, launch_ns=0).event(8 * MS, 10 * MS, launch_ns=8 * MS - 5_000)
    made.call(MS // 2, 8 * MS - 20_000, "cudaMemcpyAsync")
    made.host(MS // 2, 8 * MS - 15_000, "aten::item", HostKind.OPERATOR)
    (row,) = activities(made)
    assert (row["cause"], row["operator"], row["idle_ns"]) == ("synchronisation", "aten::item", 7 * MS)


def test_host_work_is_named_by_the_users_function_and_by_the_librarys_inside() -> None:
    made = Made().step(0, 10 * MS, 0)
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    for start, end, name in (
        (0, 10 * MS, "/home/me/train.py(3): main"),
        (MS, 9 * MS - 50_000, "/home/me/augment.py(7): augment"),
        (MS + 1, 9 * MS - 60_000, "scipy/ndimage/_interpolation.py(700): zoom"),
        (MS + 2, 4 * MS, "numpy/core/shape_base.py(372): stack"),
    ):
        made.host(start, end, name, HostKind.PYTHON)
    (row,) = activities(made)
    assert (row["cause"], row["kind"], row["idle_ns"]) == ("host work", "python", 8 * MS)
    assert row["what"] == "zoom (scipy/ndimage/_interpolation.py)"
    assert row["where"] == {"file": "/home/me/augment.py", "line": 7, "function": "augment"}
    assert row["innermost"]["function"] == "zoom"
    assert row["innermost_ns"] == 8 * MS - 60_000 - 1


def test_time_gathers_under_the_function_that_covers_most_of_it() -> None:
    """Many short functions inside of one: a person calls that preprocessing, and asks what in it takes most."""
    made = Made().step(0, 10 * MS, 0)
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    made.host(MS, 9 * MS - 6_000, "transformers/pipelines/video.py(120): preprocess", HostKind.PYTHON)
    for i in range(20):
        start = MS + 400_000 * i
        made.host(start, start + 300_000, "transformers/image.py(235): resize", HostKind.PYTHON)
        made.host(start, start + 90_000, "numpy/core.py(3): pad", HostKind.PYTHON)
    (row,) = activities(made)
    assert row["where"]["function"] == "preprocess"
    assert (row["innermost"]["function"], row["innermost_ns"]) == ("resize", 20 * 300_000)


def test_an_operator_without_kernels_is_named_beside_the_rest() -> None:
    made = Made().step(0, 20 * MS, 0).range(0, 20 * MS, "DistributedDataParallel.forward")
    made.event(0, MS, launch_ns=0).event(19 * MS, 20 * MS, launch_ns=19 * MS - 5_000)
    made.host(3 * MS, 15 * MS, "aten::unflatten_dense_tensors", HostKind.OPERATOR)
    first, second = activities(made)
    assert (first["kind"], first["what"], first["idle_ns"]) == (
        "operator", "aten::unflatten_dense_tensors", 12 * MS,
    )  # fmt: skip
    assert first["range"] == second["range"] == "DistributedDataParallel.forward"
    assert (second["kind"], second["count"], second["idle_ns"]) == ("range", 2, 6 * MS)


def test_nothing_recorded_is_said_so() -> None:
    made = Made().step(0, 10 * MS, 0)
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    (row,) = activities(made)
    assert (row["cause"], row["what"], row["kind"]) == ("not recorded", None, "")


def test_what_autograds_thread_does_counts_where_it_launches_and_the_main_thread_waits() -> None:
    made = Made().step(0, 10 * MS, 0).range(0, 10 * MS, "backward")
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000, launch_thread=77)
    made.host(0, 10 * MS, "train.py(9): train", HostKind.PYTHON)
    made.host(1, 10 * MS, "<built-in method run_backward of torch._C._EngineBase>", HostKind.PYTHON)
    made.host(MS, 9 * MS, "autograd::engine::evaluate_function: MyBackward", HostKind.OPERATOR, thread=77)
    (row,) = activities(made)
    assert (row["kind"], row["operator"]) == ("operator", "autograd::engine::evaluate_function: MyBackward")
    assert (row["phase"], row["where"]["function"]) == ("backward", "train")


def test_a_host_that_waits_on_no_core_is_named_unless_a_call_of_the_system_is() -> None:
    made = Made().step(0, 10 * MS, 0)
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    made.host(MS, 8 * MS, "not on a core", HostKind.WAIT)
    (row,) = activities(made)
    assert (row["cause"], row["kind"], row["what"]) == ("host work", "wait", "not on a core")
    made.host(2 * MS, 8 * MS, "read", HostKind.OS_CALL)
    (row,) = activities(made)
    assert (row["kind"], row["what"]) == ("os call", "read")


def test_the_collector_and_the_profiler_are_causes_of_their_own() -> None:
    made = Made().step(0, 10 * MS, 0).host(2 * MS, 4 * MS, "Python GC", HostKind.COLLECTOR)
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    made.host(5 * MS, 8 * MS, "CUPTI Buffer flush", HostKind.PROFILER, thread=-1)
    causes = idle_of(made)
    assert (causes["garbage collection"], causes["profiler"]) == (2 * MS, 3 * MS)


def test_code_that_the_driver_loads_is_first_use() -> None:
    made = Made().step(0, 10 * MS, 0).host(2 * MS, 8 * MS, "Lazy Function Loading", HostKind.OS_CALL)
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    assert idle_of(made)["first use"] == 6 * MS


def test_a_function_that_loads_data_is_data_loading() -> None:
    made = Made().step(0, 10 * MS, 0)
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    made.host(2 * MS, 8 * MS, "torch/utils/data/dataloader.py(633): __next__", HostKind.PYTHON)
    made.host(3 * MS, 8 * MS, "/home/me/videos.py(5): __getitem__", HostKind.PYTHON)
    assert idle_of(made)["data loading"] == 6 * MS
    (row,) = (r for r in activities(made) if r["cause"] == "data loading")
    assert row["innermost"]["function"] == "__getitem__"


def test_a_graph_that_is_captured_keeps_the_device_idle() -> None:
    made = Made().step(0, 10 * MS, 0).call(2 * MS, 2 * MS + 9, "cudaStreamBeginCapture")
    made.event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=9 * MS - 5_000)
    made.call(7 * MS, 8 * MS, "cudaStreamEndCapture")
    idle = measured_of(made)[1].idle[0]
    assert idle.sums()[HostCause.CAPTURE] == 6 * MS


def test_a_pause_is_no_launch_though_work_that_waits_was_launched_after_it() -> None:
    made = Made().step(0, 10 * MS, 0).event(0, MS, launch_ns=0)
    made.event(9 * MS, 10 * MS, launch_ns=8 * MS - 5_000, stream=8)
    made.event(8 * MS, 9 * MS, launch_ns=8 * MS - 4_000)
    assert idle_of(made)["not recorded"] == 7 * MS - 5_000


def test_on_a_cpu_a_long_pause_between_operators_is_named() -> None:
    made = Made().step(0, 10 * MS, 0).range(0, 10 * MS, "forward")
    for start, end in ((0, MS), (9 * MS, 10 * MS)):
        made.event(start, end, "aten::mm", activity=Activity.CPU_OP, launch_ns=start)
    made.host(MS, 9 * MS, "/home/me/train.py(12): log", HostKind.PYTHON)
    (row,) = activities(made)
    assert (row["cause"], row["what"], row["idle_ns"]) == ("launch-bound", "log (/home/me/train.py)", 8 * MS)
    assert row["where"]["line"] == 12


@needs_real_traces
def test_every_real_trace_gives_each_idle_nanosecond_one_cause_and_no_activity_more_than_that() -> None:
    files = [p for p in FOLDER.glob("*/*") if p.name.endswith((".json.gz", ".sqlite", ".sqlite.gz"))]
    assert len(files) > 10
    for path in files:
        for part, measured in measured_processes(open_trace(path), Window.STEPS, load_rules()):
            for device in part.devices:
                idle = measured.idle[device.device]
                assert sum(c.duration_ns for c in device.idle_causes) == int(idle.sums().sum()) == device.idle_ns
                assert (idle.start_ns[1:] >= idle.end_ns[:-1]).all()
                rows = [r for r in part.rows["host_activities"] if r["device"] == device.device]
                assert sum(r["idle_ns"] for r in rows) <= (device.idle_ns or 0)


@pytest.mark.parametrize(
    ("name", "cause", "what", "around", "idle_ms"),
    [
        (
            "kineto_a100_collective_args/rank0.json.gz",
            "host work",
            "aten::unflatten_dense_tensors",
            "DistributedDataParallel.forward",
            67,
        ),
        ("kineto_resnet50_workers/num_workers_4.json.gz", "blocking copy", "cudaMemcpyAsync", None, 37),
        (
            "kineto_resnet50_workers/num_workers_0.json.gz",
            "data loading",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            352,
        ),
    ],
)
def test_the_largest_thing_that_the_host_of_a_real_trace_did_is_named(
    name: str, cause: str, what: str, around: str | None, idle_ms: int
) -> None:
    ((part, _),) = measured_processes(open_trace(real_trace(name)), Window.STEPS, load_rules())
    row = next(r for r in part.rows["host_activities"] if r["cause"] != "launch-bound")
    assert (row["cause"], row["what"], row["range"], row["idle_ns"] // MS) == (cause, what, around, idle_ms)
