"""Steps are found where the program marked them, and none is dropped or kept without saying so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.part import RankPart
from harness.analysis.process.prepared import prepare_process
from harness.analysis.process.view import views
from harness.analysis.summary import Window, problem_texts
from harness.explain.answer import answer
from harness.measure.page_data import read_page_data
from harness.measure.paths import measure_one
from harness.traces import open_trace
from tests.analysis.measuring import RULES, part_of, steps_of, summary_of
from tests.report.given_summary import text
from tests.synthetic import kineto
from tests.synthetic.columns import GEMM, Made

HOW = (Window.STEPS, RULES)


def steps(*lengths: int, kernel: int | None = None) -> Made:
    """Steps one after the other, each with a kernel that fills it but for 1 ns at either end, or of that length."""
    made, at = Made(), 0
    for i, length in enumerate(lengths):
        made.step(at, at + length, i).event(at + 1, at + 1 + (length - 2 if kernel is None else kernel))
        at += length
    return made


def batches(count: int = 4, length: int = 100, name: str = "batch") -> Made:
    """Steps that only ranges with a number mark."""
    made = Made()
    for i in range(count):
        made.range(i * length, (i + 1) * length, f"{name}_{i}").event(i * length + 10, i * length + 60)
    return made


def periodic(count: int = 8) -> Made:
    """Unmarked steps of 1,000 ns with a kernel that runs once in each."""
    made = Made()
    for i in range(count):
        made.event(i * 1000, i * 1000 + 5, "once_per_step")
        for j in range(3):
            made.event(i * 1000 + 100 * (j + 1), i * 1000 + 100 * (j + 1) + 50, GEMM)
    return made


def looped(*gaps: int, mark: int = 100) -> Made:
    """A loop whose marks leave these gaps: a kernel in each mark, and a copy in each gap."""
    made, at = Made(), 0
    for i, gap in enumerate((*gaps, 0)):
        made.range(at, at + mark, f"step {i}").event(at + 10, at + mark - 10, launch_ns=at + 5)
        if gap:
            made.copy(at + mark + gap // 2, at + mark + gap // 2 + 5, 64, launch_ns=at + mark + gap // 2 - 1)
        at += mark + gap
    return made


def numbered(*marks: tuple[int, int]) -> Made:
    """Marks of 100 ns: each number, and where it begins."""
    made = Made()
    for number, at in marks:
        made.range(at, at + 100, f"step {number}").event(at + 10, at + 90)
    return made


def ahead(marks: int = 100, kernel: int = 150, count: int = 5, *, unknown: int = 0) -> Made:
    """The host launches two kernels at the begin of each mark; the device needs longer for them than the mark lasts."""
    made, free = Made(), 7
    for i in range(count):
        made.step(i * marks, (i + 1) * marks, i)
        for k in range(2):
            launched = i * marks + 5 + k
            known = launched if 2 * i + k >= unknown else -1
            start = max(free, launched + 2)
            made.event(start, start + kernel // 2, launch_ns=known)
            free = start + kernel // 2
    return made


def with_a_worker() -> Made:
    """A process without work on a device that marks batches too."""
    made = batches(length=10_000)
    for row in (*made.events, *made.ranges):
        row["process"] = 100
    for i in range(12):
        made.range(i * 3000, i * 3000 + 2500, f"batch_{i}", thread=300, process=300)
    return made


def waiting_for_data() -> Made:
    """The host is not ahead, though its last kernels run on after the mark."""
    made = Made()
    for i in range(5):
        made.step(i * 100, (i + 1) * 100, i).event(i * 100 + 80, i * 100 + 130, launch_ns=i * 100 + 70)
    return made


def with_copies(made: Made) -> Made:
    """Copies that run ahead on their own stream begin no step."""
    for i in range(5):
        made.copy(i * 100 + 2, i * 100 + 4, 64, launch_ns=i * 100 + 1, stream=9)
    return made


OPEN = batches().event(410, 420).range(400, 420, "batch_4", is_open=True)
FOUND: dict[str, tuple[Made, dict[str, Any]]] = {
    "the last step counts like every other": (
        steps(*[100] * 5), {"source": "ProfilerStep", "counted": [True] * 5, "window": (0, 500)}),
    "batches": (batches(), {"source": "range batch", "counted": [True] * 4}),
    "iterations are the outer unit": (
        batches().range(0, 200, "iteration_0").range(200, 400, "iteration_1"), {"source": "range iteration"}),
    "a periodic kernel": (
        periodic(), {"source": "periodicity of once_per_step", "counted": [True] * 7, "window": (0, 7000)}),
    "a worker's marks are none": (with_a_worker(), {"counted": [True] * 4, "window": (0, 40_000)}),
    "no marks and no periodicity": (Made().event(0, 10).event(500, 510), {"source": "none"}),
    "a slow first step is warm-up": (
        steps(1000, *[100] * 5), {"warmup": 1, "counted": [False] + [True] * 5, "window": (1000, 1500)}),
    "warm-up leaves three steps": (steps(1000, 100, 100, 100), {"warmup": 1}),
    "of which it leaves only two": (steps(1000, 100, 100), {"warmup": 0}),
    "the second is as slow, but only two would be left": (steps(9000, 1000, 100, 100), {"warmup": 1}),
    "a range that never closed is cut off": (OPEN, {"cut_off": 1, "counted": [True] * 4 + [False]}),
    "a step without device work is empty": (
        steps(100, 100, 100).step(300, 400, 3), {"empty": 1, "counted": [True] * 3 + [False]}),
    "a step lasts until the next mark": (looped(900, 1900, 900, 1900), {"durations_ns": [1000, 2000, 1000, 2000, 100]}),
    "steps that were not recorded are no part of another": (
        numbered((0, 0), (1, 120), (2, 240), (53, 9000), (54, 9120), (55, 9240)),
        {"durations_ns": [120, 120, 100, 120, 120, 100]}),
    "marks that count from zero again": (
        numbered(*((i % 3, 120 * i) for i in range(6))), {"durations_ns": [120] * 5 + [100]}),
    "where the host is ahead a step is that of its work": (
        ahead(), {"on_device": True, "durations_ns": [150] * 5, "window": (7, 757), "first_event": [0, 2, 4, 6, 8]}),
    "one step alone, whose work ends much later": (ahead(count=1), {"window": (7, 157)}),
    "one step alone, in which the device waited": (
        Made().step(0, 100, 0).event(80, 120, launch_ns=78), {"window": (0, 100)}),
    "a host that waits for data is not ahead": (waiting_for_data(), {"on_device": False, "window": (0, 500)}),
    "without known launches the marks are the steps": (ahead(unknown=10), {"on_device": False}),
    "a host that is ahead, of marks as long as its work": (ahead(marks=150), {"durations_ns": [150] * 5}),
    "copies ahead on their own stream": (with_copies(ahead()), {"durations_ns": [150] * 5}),
    "marks around several counting ranges": (
        batches(6, 50).step(0, 100, 0).step(100, 200, 1).step(200, 300, 2),
        {"labels": [f"ProfilerStep#{i}" for i in range(3)]}),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_steps_are_those_of_the_marks_or_of_the_work(case: str) -> None:
    made, expected = FOUND[case]
    found = {name: getattr(steps_of(made), name) for name in expected}
    assert {name: each.tolist() if hasattr(each, "tolist") else each for name, each in found.items()} == expected


def test_a_first_step_that_is_warm_up_on_one_rank_counts_on_none(tmp_path: Path) -> None:
    """A step of 2.1 ms on one rank and of 1.9 on the other, of 1 ms later: their windows began 1.9 ms apart."""
    files = []
    for rank, first in enumerate((2_100_000, 1_900_000)):
        at, records = 2_100_000 - first, []
        for step, length in enumerate((first, *[1_000_000] * 5)):
            records += [
                kineto.said(f"ProfilerStep#{step}", at, length),
                kineto.kernel("gemm", at + 1000, length - 2000),
            ]
            at += length
        ranks = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}, "host_name": "a"}
        files.append(kineto.kineto(tmp_path / f"rank{rank}.json", records, header=kineto.HEADER | ranks))
    s = measure_one(files)
    assert [len(rank.durations_ns) for rank in s.steps.per_rank] == [5, 5]
    assert (s.steps.found, s.steps.counted, s.steps.excluded_warmup) == (12, 10, 2)
    assert problem_texts.UNEVEN not in [problem.what for problem in s.quality.problems]
    assert "The first step is not counted (warm-up), because it takes on at least one rank" in text(answer(s))
    data = [steps for file in files for one in read_page_data([file], s.window, None, 1) for steps in one.track.steps]
    assert len(data) == 10


@pytest.mark.parametrize(("launch_ns", "after_ns"), [(390, 40), (420, 0), (-1, 0)])
def test_work_after_the_window_is_what_is_known_to_have_been_launched_inside(launch_ns: int, after_ns: int) -> None:
    made = steps(*[100] * 4).event(450, 490, launch_ns=launch_ns)
    assert part_of(made).devices[0].work_after_window_ns == after_ns


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


def test_steps_fill_the_window_with_what_is_between_their_marks() -> None:
    summary = summary_of(looped(900, 1900, 900, 1900))
    (device,), found = summary.devices, summary.steps
    assert (found.mean_ns, found.between_ns) == (6100 // 5, 5600 // 5)
    assert found.duration is not None and found.duration.median_ns == 1000
    assert sum(step.window_ns for step in device.steps) == device.window_ns == 6100
    assert sum(step.idle_ns or 0 for step in device.steps) == device.idle_ns


def test_a_validation_between_two_epochs_is_one_step_with_much_between_and_the_median_stays() -> None:
    made = looped(*[0] * 9, 5000, *[0] * 10)
    found, of_job = steps_of(made), summary_of(made).steps
    assert (found.durations_ns.tolist().index(5100), found.between_ns.tolist().index(5000)) == (9, 9)
    assert of_job.duration is not None
    assert (of_job.duration.median_ns, of_job.between_ns) == (100, round(5000 / 21))


@pytest.mark.parametrize(
    ("made", "phases"),
    [
        (looped(400, 400, 400), {"other": 4 * 80, "between steps": 3 * 5}),
        (looped(400, 400, 400).range(100, 500, "enumerate(DataLoader)#next"),
         {"other": 4 * 80, "between steps": 2 * 5, "data loading": 5}),
    ],
)  # fmt: skip
def test_what_is_launched_between_the_marks_is_between_the_steps_unless_it_loads_data(
    made: Made, phases: dict[str, int]
) -> None:
    assert {row.phase: row.duration_ns for row in summary_of(made).phases} == phases


def test_steps_of_the_device_leave_no_work_after_the_window_and_count_the_calls_that_launched_them() -> None:
    made = ahead()
    for i in range(10):
        made.call(i * 100 + 4, i * 100 + 6, "cudaLaunchKernel")
    summary = summary_of(made)
    (device,), (launches,) = summary.devices, summary.launches
    assert (device.work_after_window_ns, device.idle_ns, device.window_ns) == (0, 0, 750)
    assert problem_texts.WORK_AFTER_STEPS not in [problem.what for problem in summary.quality.problems]
    assert (summary.steps.on_device, summary.steps.mean_ns, summary.steps.between_ns) == (True, 150, 0)
    assert [(call.name, call.count) for call in launches.calls] == [("cudaLaunchKernel", 5)]


def ranked(made: Made, rank: int) -> RankPart:
    made.identity |= {"rank": rank, "path": f"rank{rank}.json", "clock": "unix", "host": "node0", "world_size": 2}
    return part_of(made)


def test_ranks_of_one_job_have_the_same_steps_whether_they_are_on_the_device_or_not() -> None:
    """The rank that is late launches as its device works; the other is ahead by two steps and waits on its device."""
    early, late = ahead(marks=150, kernel=150), Made()
    for event in early.events:
        event.update(start_ns=event["start_ns"] + 300, end_ns=event["end_ns"] + 300)
    for i in range(5):
        late.step(i * 150, (i + 1) * 150, i).event(i * 150 + 5, i * 150 + 145, launch_ns=i * 150 + 2)
    parts = [ranked(early, 0), ranked(late, 1)]
    assert [part.steps.on_device for part in parts] == [True, False]
    summary = summarise_job(parts)
    assert [each.median_ns for each in summary.steps.per_rank] == [150, 150]
    assert problem_texts.UNEVEN not in [problem.what for problem in summary.quality.problems]


def test_launches_before_the_recording_are_not_missing_in_the_steps_of_the_device() -> None:
    made = ahead()
    for event in made.events:
        event.update(start_ns=event["start_ns"] + 600, end_ns=event["end_ns"] + 600)
    for i in range(8):
        made.event(7 + 70 * i, 70 + 70 * i)
    summary = summary_of(made)
    assert summary.steps.on_device
    assert problem_texts.LAUNCHES_MISSING not in [problem.what for problem in summary.quality.problems]


def test_of_a_process_with_two_devices_the_one_with_most_work_has_the_steps() -> None:
    made = ahead()
    for i in range(5):
        made.event(i * 100 + 20, i * 100 + 30, launch_ns=i * 100 + 8, device=1)
    found = summary_of(made)
    assert [(d.device, d.window_ns, d.idle_ns) for d in found.devices] == [(0, 750, 0), (1, 750, 700)]


@pytest.mark.parametrize("missing", [[], [0], [4]])
def test_steps_have_the_trainings_own_number_in_every_place(missing: list[int]) -> None:
    """The marks count from the profiler's start; a range counts the training's steps, and is cut off in one of them."""
    made = steps(*[100] * 5, kernel=50)
    for i in {*range(5)} - {*missing}:
        made.range(i * 100 + 1, i * 100 + 90, f"batch_{i + 11}")
    part = part_of(made)
    (device,) = part.devices
    assert [step.step for step in device.steps] == [f"step {i}" for i in range(11, 16)]
    (rank,) = summarise_job([part]).steps.per_rank
    assert part.steps.numbers == rank.steps == [*range(11, 16)]
    assert not any((gap.range or "").startswith("ProfilerStep") for gap in device.longest_gaps)


def test_steps_that_nothing_numbers_count_from_0() -> None:
    (rank,) = summary_of(periodic()).steps.per_rank
    assert rank.steps == [*range(7)]
