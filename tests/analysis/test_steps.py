"""Steps are found where the program marked them, and none is dropped or kept without saying so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.part import RankPart
from harness.analysis.process.prepared import prepare_process
from harness.analysis.process.view import views
from harness.analysis.summary import Summary, Window, problem_texts
from harness.explain.answer import answer
from harness.measure.page_data import read_page_data
from harness.measure.paths import measure_one
from harness.traces import open_trace
from tests.analysis.measuring import measure_trace
from tests.report.given_summary import text
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
    found = prepare_process(views(open_trace(made.saved(tmp_path / "t.sqlite")))[0], Window.STEPS, load_rules()).steps
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


def looped(*gaps: int, mark: int = 100, name: str = "step") -> Made:
    """A loop whose marks leave these gaps: a kernel in each mark, and a copy in each gap."""
    made, at = Made(), 0
    for i, gap in enumerate((*gaps, 0)):
        made.range(at, at + mark, f"{name} {i}").event(at + 10, at + mark - 10, launch_ns=at + 5)
        if gap:
            made.copy(at + mark + gap // 2, at + mark + gap // 2 + 5, 64, launch_ns=at + mark + gap // 2 - 1)
        at += mark + gap
    return made


def measured(made: Made) -> Summary:
    return summarise_job(measure_trace(made.trace(), *HOW))


def phases_of(made: Made) -> dict[str, int]:
    return {row.phase: row.duration_ns for row in measured(made).phases}


def test_a_step_lasts_until_the_next_mark_begins_and_the_last_one_until_its_mark_ends() -> None:
    steps = measured(looped(900, 1900, 900, 1900)).steps
    assert steps.per_rank[0].durations_ns == [1000, 2000, 1000, 2000, 100]
    assert (steps.mean_ns, steps.between_ns) == (6100 // 5, 5600 // 5)
    assert steps.duration is not None
    assert steps.duration.median_ns == 1000


def test_the_steps_fill_the_window() -> None:
    (device,) = measured(looped(900, 1900, 900)).devices
    assert sum(step.window_ns for step in device.steps) == device.window_ns == 4100
    assert sum(step.idle_ns or 0 for step in device.steps) == device.idle_ns


def test_what_is_launched_between_the_marks_is_in_the_phase_between_steps() -> None:
    assert phases_of(looped(400, 400, 400)) == {"other": 4 * 80, "between steps": 3 * 5}


def test_data_loading_between_the_marks_stays_data_loading() -> None:
    made = looped(400, 400, 400)
    made.range(100, 500, "enumerate(DataLoader)#next")
    assert phases_of(made) == {"other": 4 * 80, "between steps": 2 * 5, "data loading": 5}


def test_a_validation_between_two_epochs_is_one_step_with_much_between_and_the_median_stays() -> None:
    made = looped(*[0] * 9, 5000, *[0] * 10)
    found = steps_of(made)
    assert (found.durations_ns.tolist().index(5100), found.between_ns.tolist().index(5000)) == (9, 9)
    steps = measured(made).steps
    assert steps.duration is not None
    assert (steps.duration.median_ns, steps.between_ns) == (100, round(5000 / 21))


def test_steps_that_were_not_recorded_are_no_part_of_the_step_before_them() -> None:
    made = Made()
    for number, at in ((0, 0), (1, 120), (2, 240), (53, 9000), (54, 9120), (55, 9240)):
        made.range(at, at + 100, f"step {number}").event(at + 10, at + 90)
    assert steps_of(made).durations_ns.tolist() == [120, 120, 100, 120, 120, 100]


def test_marks_that_count_from_zero_again_follow_each_other() -> None:
    made = Made()
    for i in range(6):
        made.range(i * 120, i * 120 + 100, f"batch {i % 3}").event(i * 120 + 10, i * 120 + 90)
    assert steps_of(made).durations_ns.tolist() == [120] * 5 + [100]


def ahead(marks: int = 100, kernel: int = 150, steps: int = 5, *, unknown: int = 0) -> Made:
    """The host launches two kernels at the begin of each mark; the device needs longer for them than the mark lasts."""
    made, free = Made(), 7
    for i in range(steps):
        made.step(i * marks, (i + 1) * marks, i)
        for k in range(2):
            launched = i * marks + 5 + k
            known = launched if 2 * i + k >= unknown else -1
            start = max(free, launched + 2)
            made.event(start, start + kernel // 2, launch_ns=known)
            free = start + kernel // 2
    return made


def test_where_the_host_is_ahead_a_step_is_that_of_the_work_it_launched() -> None:
    found = steps_of(ahead())
    assert found.on_device
    assert found.durations_ns.tolist() == [150] * 5
    assert found.window == (7, 757)
    assert (found.first_event.tolist(), found.last_event) == ([0, 2, 4, 6, 8], 9)
    assert (found.mark_start_ns[0], found.mark_end_ns[-1]) == (0, 500)


def test_steps_of_the_device_leave_no_work_after_the_window() -> None:
    summary = measured(ahead())
    (device,) = summary.devices
    assert (device.work_after_window_ns, device.idle_ns, device.window_ns) == (0, 0, 750)
    assert not [p for p in summary.quality.problems if p.what == problem_texts.WORK_AFTER_STEPS]
    assert (summary.steps.on_device, summary.steps.mean_ns, summary.steps.between_ns) == (True, 150, 0)


def test_one_step_alone_is_on_the_device_if_its_work_ends_much_later_than_its_mark() -> None:
    assert steps_of(ahead(steps=1)).window == (7, 157)
    late = Made().step(0, 100, 0).event(80, 120, launch_ns=78)
    assert steps_of(late).window == (0, 100), "the device waited for most of the step"


def test_a_host_that_waits_for_data_is_not_ahead_though_its_last_kernels_run_on() -> None:
    made = Made()
    for i in range(5):
        made.step(i * 100, (i + 1) * 100, i).event(i * 100 + 80, i * 100 + 130, launch_ns=i * 100 + 70)
    found = steps_of(made)
    assert (found.on_device, found.window) == (False, (0, 500))


def test_without_known_launches_the_marks_are_the_steps() -> None:
    assert not steps_of(ahead(unknown=10)).on_device


def test_a_rank_whose_host_is_ahead_and_one_whose_host_is_not_have_steps_of_one_length() -> None:
    made = [ahead(marks=150, kernel=150, steps=5), looped(50, 50, 50, 50)]
    assert [steps_of(each).durations_ns[:4].tolist() for each in made] == [[150] * 4] * 2


def ranked(made: Made, rank: int) -> RankPart:
    made.identity |= {"rank": rank, "path": f"rank{rank}.json", "clock": "unix", "host": "node0", "world_size": 2}
    (part,) = measure_trace(made.trace(), *HOW)
    return part


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
    assert summary.pacing is not None
    assert [place.first_lag_ns for place in summary.pacing.places] == [0, 0]


def test_launches_before_the_recording_are_not_missing_in_the_steps_of_the_device() -> None:
    made = ahead()
    for event in made.events:
        event.update(start_ns=event["start_ns"] + 600, end_ns=event["end_ns"] + 600)
    for i in range(8):
        made.event(7 + 70 * i, 70 + 70 * i)
    summary = measured(made)
    assert summary.steps.on_device
    assert problem_texts.LAUNCHES_MISSING not in [problem.what for problem in summary.quality.problems]


def test_of_a_process_with_two_devices_the_one_with_most_work_has_the_steps() -> None:
    made = ahead()
    for i in range(5):
        made.event(i * 100 + 20, i * 100 + 30, launch_ns=i * 100 + 8, device=1)
    found = measured(made)
    assert [(d.device, d.window_ns, d.idle_ns) for d in found.devices] == [(0, 750, 0), (1, 750, 700)]


def test_the_calls_of_steps_on_the_device_are_those_that_launched_them() -> None:
    made = ahead()
    for i in range(10):
        made.call(i * 100 + 4, i * 100 + 6, "cudaLaunchKernel")
    (launches,) = measured(made).launches
    assert [(call.name, call.count) for call in launches.calls] == [("cudaLaunchKernel", 5)]


def test_copies_that_run_ahead_on_their_own_stream_begin_no_step() -> None:
    made = ahead()
    for i in range(5):
        made.copy(i * 100 + 2, i * 100 + 4, 64, launch_ns=i * 100 + 1, stream=9)
    assert steps_of(made).durations_ns.tolist() == [150] * 5


@pytest.mark.parametrize("missing", [[], [0], [4]])
def test_steps_have_the_trainings_own_number_in_every_place(missing: list[int]) -> None:
    """The marks count from the profiler's start; a range counts the training's steps, and is cut off in one of them."""
    made = stepped(5)
    for i in {*range(5)} - {*missing}:
        made.range(i * 100 + 1, i * 100 + 90, f"batch_{i + 11}")
    (part,) = measure_trace(made.trace(), *HOW)
    (device,) = part.devices
    assert [step.step for step in device.steps] == [f"step {i}" for i in range(11, 16)]
    (rank,) = summarise_job([part]).steps.per_rank
    assert part.steps.numbers == rank.steps == [*range(11, 16)]
    assert not any((gap.range or "").startswith("ProfilerStep") for gap in device.longest_gaps)


def test_marks_around_several_counting_ranges_keep_their_own_numbers() -> None:
    made = stepped(3)
    for i in range(6):
        made.range(i * 50, i * 50 + 40, f"batch_{i}")
    assert steps_of(made).labels == [f"ProfilerStep#{i}" for i in range(3)]


def test_steps_that_nothing_numbers_count_from_0() -> None:
    made = Made()
    for i in range(8):
        made.event(i * 1000, i * 1000 + 5, "once_per_step")
        for j in range(3):
            made.event(i * 1000 + 100 * (j + 1), i * 1000 + 100 * (j + 1) + 50, GEMM)
    (rank,) = summarise_job(measure_trace(made.trace(), *HOW)).steps.per_rank
    assert rank.steps == [*range(7)]
