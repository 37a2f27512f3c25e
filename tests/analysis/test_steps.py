"""Steps are found where the program marked them, and none is dropped or kept without saying so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measure_trace
from harness.analysis.process.prepared import prepare_process
from harness.analysis.process.view import views
from harness.analysis.summary import Window
from harness.traces import open_trace
from tests.synthetic import kineto
from tests.synthetic.columns import GEMM, Made
from tests.synthetic.nsys import Nsys

HOW = (Window.STEPS, load_rules())


def steps_of(made: Made) -> Any:
    return prepare_process(views(made.trace())[0], Window.STEPS, load_rules()).steps


def stepped(count: int, length: int = 100, name: str = "ProfilerStep") -> Made:
    made = Made()
    for i in range(count):
        if name == "ProfilerStep":
            made.step(i * length, (i + 1) * length, i)
        else:
            made.range(i * length, (i + 1) * length, f"{name}_{i}")
        made.event(i * length + 10, i * length + 60)
    return made


def test_the_last_profiler_step_counts_like_every_other() -> None:
    found = steps_of(stepped(5))
    assert found.source == "ProfilerStep"
    assert found.counted.tolist() == [True] * 5
    assert found.window == (0, 500)


def test_nvtx_batches_are_steps_when_there_is_no_profiler_step() -> None:
    found = steps_of(stepped(4, name="batch"))
    assert (found.source, int(found.counted.sum())) == ("range batch", 4)


def test_iterations_are_the_outer_unit_when_both_are_marked() -> None:
    made = stepped(4, name="batch")
    made.range(0, 200, "iteration_0").range(200, 400, "iteration_1")
    assert steps_of(made).source == "range iteration"


def test_without_marks_a_periodic_kernel_gives_the_steps_and_is_named_as_their_source() -> None:
    made = Made()
    for i in range(8):
        made.event(i * 1000, i * 1000 + 5, "once_per_step")
        for j in range(3):
            made.event(i * 1000 + 100 * (j + 1), i * 1000 + 100 * (j + 1) + 50, GEMM)
    found = steps_of(made)
    assert found.source == "periodicity of once_per_step"
    assert len(found.names) == 7
    assert found.window == (0, 7000)


def test_the_marks_of_a_worker_without_device_work_are_no_steps() -> None:
    made = stepped(4, length=10_000, name="batch")
    for event in (*made.events, *made.ranges):
        event["process"] = 100
    for i in range(12):
        made.range(i * 3000, i * 3000 + 2500, f"batch_{i}", thread=300, process=300)
    found = steps_of(made)
    assert (int(found.counted.sum()), found.window) == (4, (0, 40_000))


def test_without_marks_or_periodicity_there_are_no_steps() -> None:
    assert steps_of(Made().event(0, 10).event(500, 510)).source == "none"


def test_a_slow_first_step_is_warm_up_and_counted_as_excluded() -> None:
    made = Made().step(0, 1000, 0).event(10, 900)
    for i in range(1, 6):
        made.step(900 + i * 100, 1000 + i * 100, i).event(910 + i * 100, 950 + i * 100)
    found = steps_of(made)
    assert (found.warmup, found.counted.tolist()) == (1, [False] + [True] * 5)
    assert found.window == (1000, 1500)


def test_warm_up_leaves_three_steps_that_it_was_compared_with() -> None:
    def warmup(*lengths: int) -> int:
        made, at = Made(), 0
        for i, length in enumerate(lengths):
            made.step(at, at + length, i).event(at + 1, at + length - 1)
            at += length
        return int(steps_of(made).warmup)

    assert warmup(1000, 100, 100, 100) == 1
    assert warmup(1000, 100, 100) == 0
    assert warmup(9000, 1000, 100, 100) == 1, "the second is as slow, but only two would be left"


def test_work_after_the_window_is_what_is_known_to_have_been_launched_inside() -> None:
    def after(launch_ns: int) -> int:
        made = stepped(4).event(450, 490, launch_ns=launch_ns)
        (part,) = measure_trace(made.trace(), *HOW)
        return part.devices[0].work_after_window_ns

    assert after(390) == 40
    assert after(420) == 0
    assert after(-1) == 0, "its launch is not known"


def test_a_range_that_never_closed_is_a_cut_off_step() -> None:
    made = stepped(4, name="batch")
    made.event(410, 420).range(400, 420, "batch_4", is_open=True)
    found = steps_of(made)
    assert (found.cut_off, found.counted.tolist()) == (1, [True] * 4 + [False])


def test_a_batch_that_nsys_never_saw_end_does_not_count(tmp_path: Path) -> None:
    made = Nsys()
    for i in range(5):
        made.range(f"batch_{i}", i * 1000, 1000 if i < 4 else None)
        made.kernel("gemm", i * 1000 + 100, 500)
    found = prepare_process(
        views(open_trace(made.saved(tmp_path / "t.sqlite")))[0], Window.STEPS, load_rules()
    ).steps
    assert (found.cut_off, found.counted.tolist()) == (1, [True] * 4 + [False])
    assert found.window == (0, 4000)


def half_written(tmp_path: Path, records: list[kineto.Record], share: float, **header: object) -> Path:
    text = kineto.kineto_text(records, header=kineto.HEADER | header)
    path = tmp_path / "rank0.json"
    path.write_bytes(text[: int(share * len(text))])
    return path


@pytest.mark.parametrize("share", [0.2, 0.4, 0.5, 0.6, 0.7, 0.8])
def test_steps_whose_kernels_a_half_written_file_lost_do_not_count(tmp_path: Path, share: float) -> None:
    marks = [kineto.said(f"ProfilerStep#{i}", i * 1000, 1000) for i in range(10)]
    kernels = [kineto.kernel("gemm", i * 1000 + 100 * j, 50) for i in range(10) for j in range(10)]
    whole = prepare_process(views(open_trace(kineto.kineto(tmp_path / "t.json", marks + kernels)))[0], *HOW)
    assert int(whole.steps.counted.sum()) == 10
    trace = open_trace(half_written(tmp_path, marks + kernels, share))
    found = prepare_process(views(trace)[0], *HOW).steps
    per_step = [int(((trace.events.start_ns // 1000) == i).sum()) for i in range(10)]
    assert found.counted.tolist() == [n == 10 and i < len(trace.events) // 10 for i, n in enumerate(per_step)]
    assert found.cut_off == 10 - int(found.counted.sum()) > 0


def test_a_half_written_file_of_a_cpu_loses_the_step_it_ends_in(tmp_path: Path) -> None:
    records = []
    for i in range(10):
        records.append(kineto.said(f"ProfilerStep#{i}", i * 1000, 1000))
        records += [kineto.operator("aten::mm", i * 1000 + 100 * j, 50) for j in range(10)]
    trace = open_trace(half_written(tmp_path, records, 0.5, deviceProperties=[]))
    found = prepare_process(views(trace)[0], *HOW).steps
    assert found.cut_off == 1
    assert 3 <= int(found.counted.sum()) == len(found.names) - 1


def test_a_step_without_device_work_is_empty_not_counted() -> None:
    made = stepped(3)
    made.step(300, 400, 3)
    found = steps_of(made)
    assert (found.empty, int(found.counted.sum())) == (1, 3)
