"""Each mistake that other tools make without a word on real traces, and that this one must not make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import RecordingVerdict, Summary, Window
from harness.measure.paths import measure_one as measure
from harness.report.tables.terminal import render
from harness.traces.trace import Activity, RangeKind
from tests.analysis.measuring import a_rank, summary_of
from tests.synthetic import kineto
from tests.synthetic.columns import NCCL, Made

BASE_NS = 4_194_304_123_456_000  # µs near 2**42: three decimals do not fit a float64 beside them


def timed(name: str, cat: str, start_ns: int, duration_ns: int, **args: Any) -> kineto.Record:
    """An event whose times are decimals, as Kineto writes them."""
    return kineto.record(cat, name, BASE_NS + start_ns, duration_ns, pid=0, tid=7, **args)


def write_decimals(folder: Path, events: list[kineto.Record]) -> Path:
    """The events as a trace file."""
    return kineto.kineto(folder / "trace.json", events, "one record a line", header={"schemaVersion": 1})


def kernel(start_ns: int, duration_ns: int, correlation: int, name: str = "ampere_sgemm_64x64_nn") -> kineto.Record:
    return timed(name, "kernel", start_ns, duration_ns, device=0, stream=7, correlation=correlation)


def test_kernels_shorter_than_a_microsecond_keep_every_nanosecond(tmp_path: Path) -> None:
    events = [kernel(1000 * i + 333, 17 + i, i) for i in range(50)]
    summary = measure([write_decimals(tmp_path, events)], "gpu")
    (device,) = summary.devices
    assert (device.compute_ns, device.window_ns) == (sum(17 + i for i in range(50)), 49 * 1000 + 17 + 49)
    assert all(k.min_ns == 17 for k in summary.kernels)


def test_a_cpu_operator_that_mentions_a_stream_is_not_a_kernel(tmp_path: Path) -> None:
    stream = timed("aten::record_stream", "cpu_op", 2000, 2000, stream=7, correlation=9)
    events = [kernel(0, 1000, 1), kernel(5000, 1000, 2), stream]
    (device,) = measure([write_decimals(tmp_path, events)], "gpu").devices
    assert (device.kernels, device.compute_ns, device.idle_ns) == (2, 2000, 4000)


def two_processes() -> Made:
    made = Made(source="nsys", path="profile_node0.sqlite")
    for rank, pid in ((0, 111), (1, 222)):
        made.event(0, 10 + rank, device=0, process=pid)
        made.range(0, 100, f"epoch_0-rank_{rank}", process=pid, thread=pid)
    return made


def steps(count: int, *, without: tuple[int, ...] = (), work: int = 90) -> Made:
    """Steps of 100 ns; `without`: those that have no work."""
    made = Made()
    for i in range(count):
        made.step(i * 100, i * 100 + 100, i)
        if i not in without:
            made.event(i * 100, i * 100 + work)
    return made


def whole_graphs() -> Made:
    made = Made(source="nsys")
    for i in range(4):
        made.step(i * 100, i * 100 + 100, i)
        made.event(i * 100, i * 100 + 90, "CUDA graph 3", launch_ns=i * 100)
        made.event(i * 100 + 80, i * 100 + 95, NCCL, launch_ns=i * 100)
    return made


CPU = Activity.CPU_OP
DEVICES: dict[str, tuple[Made, list[dict[str, Any]]]] = {
    "every device is looked at": (
        Made().event(0, 10, device=0).event(0, 90, device=3),
        [{"device": 0, "compute_ns": 10}, {"device": 3, "compute_ns": 90}]),
    "several processes of one report are several ranks": (
        two_processes(), [{"rank": 0, "pid": 111, "compute_ns": 10}, {"rank": 1, "pid": 222, "compute_ns": 11}]),
    "a little send and receive makes no pipeline": (
        Made().step(0, 300, 0).event(0, 283).event(283, 300, "ncclDevKernel_SendRecv(ncclDevKernelArgs)"),
        [{"communication_ns": 17}]),
    "a whole recording has its idle time": (steps(4, work=60), [{"idle_ns": 160}]),
    "one with empty steps has none": (
        steps(32, without=tuple(range(2, 32)), work=60),
        [{"idle_ns": None, "busy_fraction": None, "idle_causes": [], "compute_ns": 120}]),
    "nor has one with empty steps between others": (steps(7, without=(2, 3, 4)), [{"idle_ns": None}]),
    "empty steps before and after the window do no harm": (steps(7, without=(0, 6)), [{"idle_ns": 50}]),
    "collectives on a CPU are communication": (
        Made().step(0, 100, 0).event(0, 60, "aten::mm", activity=CPU)
        .event(40, 90, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE, stream=2),
        [{"communication_ns": 50, "exposed_communication_ns": 30, "overlap_fraction": 20 / 50}]),
    "whole CUDA graphs hide communication": (
        whole_graphs(), [{"compute_ns": 360, "communication_ns": None, "overlap_fraction": None}]),
    "nothing was recorded": (Made().step(0, 100, 0), []),
}  # fmt: skip
WITHHELD = {
    "one with empty steps has none": ("idle_ns", "30 of 32 steps"),
    "nor has one with empty steps between others": ("idle_ns", "3 of 7 steps"),
    "whole CUDA graphs hide communication": (
        "overlap_fraction",
        "CUDA graphs were recorded whole (86% of kernel time)",
    ),
}


@pytest.mark.parametrize("case", DEVICES)
def test_the_devices_times_are_those_of_the_recording_or_withheld(case: str) -> None:
    made, expected = DEVICES[case]
    found = summary_of(made)
    known = zip(found.devices, expected, strict=True)
    assert [{name: getattr(device, name) for name in of} for device, of in known] == expected
    assert found.pipeline is None
    withheld = [w.reason for w in found.quality.withheld if w.field == WITHHELD.get(case, ("idle_ns", ""))[0]]
    assert [WITHHELD[case][1] in reason for reason in withheld] == [True] if case in WITHHELD else withheld == []


def test_what_is_not_known_beside_whole_graphs_is_in_no_phase_metric_or_text() -> None:
    found = summary_of(whole_graphs())
    assert found.devices[0].steps[0].exposed_communication_ns is None
    assert "overlap_fraction" not in metrics_by_name(found)
    assert {(p.compute_ns, p.communication_ns) for p in found.phases} == {(None, None)}
    text = " ".join(render(found).split())
    assert "CUDA graphs were recorded whole (86% of kernel time)" in text
    assert "Kinds of work, all devices; communication: only outside of CUDA graphs" in text


def host_alone() -> Made:
    """Two processes, of which nsys recorded no GPU."""
    made = Made(source="nsys")
    for process, length in ((7, 10), (8, 20)):
        for i in range(4):
            made.range(i * 100, i * 100 + length, f"batch_{i}", process=process, thread=process)
    return made


def shifted(rank: int, shift: int, number: int | None = None) -> Made:
    """Four steps, each with its number from this one on; None: without numbers."""
    made = a_rank(rank)
    for i, at in enumerate(range(shift, shift + 400, 100)):
        name = "step" if number is None else f"ProfilerStep#{number + i}"
        made.range(at, at + 100, name, kind=RangeKind.STEP).event(at, at + 50)
    return made


def batches(rank: int, *, marked: bool) -> Made:
    made = a_rank(rank)
    for at in range(0, 8000, 1000):
        made.event(at, at + 900)
        if marked:
            made.range(at, at + 1000, f"batch_{at // 1000}")
    return made


def layers(module: str) -> Made:
    """Two steps of eight layers, and nothing but the attention kernel to tell a period."""
    made = Made()
    for i in range(16):
        made.range(i * 100, i * 100 + 50, module.format(layer=i % 8, i=i))
        made.event(i * 100, i * 100 + 90, "flash_fwd_kernel", launch_ns=i * 100)
    return made


def damaged() -> Made:
    made = Made().step(0, 100, 0).step(100, 200, 1)
    made.event(0, 90).event(110, 190, launch_ns=105).event(195, 400, launch_ns=198)
    made.extra["dropped_events"] = 7
    return made


OTHER_STEPS = "ranks were not profiled over the same steps"
UNMARKED = ("the steps are not marked", "")
PROBLEMS: list[tuple[list[Made], list[tuple[str, str]]]] = [
    ([host_alone()], [("recorded without a GPU", "")] * 2),
    ([damaged()], [
        ("the profiler dropped events", "7 dropped"),
        ("idle causes and ranges are incomplete: launches are missing", "2 of 3 kernels"),
        ("work of the steps continues after their last mark", ""),
    ]),
    ([shifted(0, 0, 2), shifted(1, 100, 3)], [(OTHER_STEPS, "steps 2 to 5 on one rank, 3 to 6 on another")]),
    ([shifted(0, 0), shifted(1, 170)], [(OTHER_STEPS, "windows start 0.00 ms apart, a step is 0.00 ms")]),
    ([batches(0, marked=True), batches(1, marked=False)], [("different ways", "range batch in 1 of 2 processes")]),
    ([whole_graphs()], [("CUDA graphs", "4 graphs, 86% of kernel time (record with --cuda-graph-trace=node)")]),
    ([layers("FSDP::pre_forward (blocks.{layer}), op_id = {i}")], [UNMARKED]),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "problems"), PROBLEMS)
def test_what_a_recording_lacks_is_a_problem_with_its_numbers(
    ranks: list[Made], problems: list[tuple[str, str]]
) -> None:
    found = summary_of(*ranks).quality.problems
    for what, evidence in problems:
        assert any(what in problem.what and evidence in problem.evidence for problem in found), what


@pytest.mark.parametrize("ranks", [[shifted(0, 0, 2), shifted(1, 170, 2)], [shifted(0, 0), shifted(1, 70)]])
def test_a_slow_rank_begins_the_same_steps_late(ranks: list[Made]) -> None:
    assert OTHER_STEPS not in {problem.what for problem in summary_of(*ranks).quality.problems}


def verdict(summary: Summary) -> tuple[RecordingVerdict, list[list[int]]]:
    return summary.quality.verdict, sorted(each.durations_ns for each in summary.steps.per_rank)


def test_without_work_a_recording_has_its_steps_at_most() -> None:
    assert verdict(summary_of(Made().step(0, 100, 0))) == (RecordingVerdict.UNUSABLE, [[100]])
    assert verdict(summary_of(host_alone())) == (RecordingVerdict.DOUBTFUL, [[100] * 3 + [10], [100] * 3 + [20]])


@pytest.mark.parametrize(("until", "idle_ns"), [(300, 240), (200, None)])
def test_a_cut_off_file_that_is_not_in_the_order_of_time_has_no_idle_time(until: int, idle_ns: int | None) -> None:
    """A file whose last record starts at 300 is complete up to there; a last record at 200 can miss some of what
    began later."""
    made = Made().step(0, 1000, 0)
    for i in range(4):
        made.event(i * 100, i * 100 + 20, launch_ns=i * 100)
    made.event(300, 300)
    made.extra["complete_until_ns"] = until
    found = summary_of(made)
    (device,) = found.devices
    assert (device.idle_ns, "idle_ns" in {w.field for w in found.quality.withheld}) == (idle_ns, idle_ns is None)
    said = render(found)
    assert "Steps: 1 found, none can be counted; the window is from the first to the last event of the devices" in said
    assert "shares of the window (device extent)" in said


def test_the_gpu_window_reaches_from_the_first_event_to_the_last_even_if_they_take_no_time() -> None:
    made = Made().event(0, 0).event(100, 200).event(300, 300)
    assert summary_of(made, window=Window.GPU).devices[0].window_ns == 300
