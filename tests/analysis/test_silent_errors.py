"""Each mistake that other tools make without a word on real traces, and that this one must not make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.metrics import metrics_by_name
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import RecordingVerdict, Summary, Window
from harness.measure.paths import measure_one as measure
from harness.report.tables.terminal import render
from harness.traces.trace import Activity
from tests.analysis.measuring import measure_trace
from tests.synthetic import kineto
from tests.synthetic.columns import Made

RULES = load_rules()
BASE_NS = 4_194_304_123_456_000  # µs near 2**42: three decimals do not fit a float64 beside them


def summary_of(*made: Made, window: Window = Window.STEPS) -> Summary:
    return summarise_job([part for m in made for part in measure_trace(m.trace(), window, RULES)])


def timed(name: str, cat: str, start_ns: int, duration_ns: int, **args: Any) -> kineto.Record:
    """An event whose times are decimals, as Kineto writes them."""
    return kineto.record(cat, name, BASE_NS + start_ns, duration_ns, pid=0, tid=7, **args)


def write_decimals(folder: Path, events: list[kineto.Record]) -> Path:
    """The events as a trace file."""
    return kineto.kineto(folder / "trace.json", events, "one record a line", header={"schemaVersion": 1})


def kernel(start_ns: int, duration_ns: int, correlation: int, name: str = "ampere_sgemm_64x64_nn") -> kineto.Record:
    return timed(name, "kernel", start_ns, duration_ns, device=0, stream=7, correlation=correlation)


def test_the_last_profiler_step_is_kept() -> None:
    made = Made()
    for i in range(3):
        made.step(i * 100, i * 100 + 100, i).event(i * 100, i * 100 + 50)
    found = summary_of(made)
    assert (found.steps.counted, found.devices[0].window_ns, found.devices[0].compute_ns) == (3, 300, 150)


def test_kernels_shorter_than_a_microsecond_keep_every_nanosecond(tmp_path: Path) -> None:
    events = [kernel(1000 * i + 333, 17 + i, i) for i in range(50)]
    (device,) = measure([write_decimals(tmp_path, events)], "gpu").devices
    assert device.compute_ns == sum(17 + i for i in range(50))
    assert device.window_ns == 49 * 1000 + 17 + 49
    assert all(k.min_ns == 17 for k in measure([tmp_path], "gpu").kernels)


def test_a_cpu_operator_that_mentions_a_stream_is_not_a_kernel(tmp_path: Path) -> None:
    events = [
        kernel(0, 1000, 1),
        kernel(5000, 1000, 2),
        timed("aten::record_stream", "cpu_op", 2000, 2000, stream=7, correlation=9),
    ]
    (device,) = measure([write_decimals(tmp_path, events)], "gpu").devices
    assert (device.kernels, device.compute_ns, device.idle_ns) == (2, 2000, 4000)


def test_a_memset_is_not_compute() -> None:
    (device,) = summary_of(Made().event(0, 10).memset(20, 100), window=Window.GPU).devices
    assert (device.compute_ns, device.memory_ns) == (10, 80)


def test_every_device_is_looked_at() -> None:
    found = summary_of(Made().event(0, 10, device=0).event(0, 90, device=3), window=Window.GPU)
    assert [(d.device, d.compute_ns) for d in found.devices] == [(0, 10), (3, 90)]


def test_several_processes_of_one_report_are_several_ranks() -> None:
    made = Made(source="nsys", path="profile_node0.sqlite")
    for rank, pid in ((0, 111), (1, 222)):
        made.event(0, 10 + rank, device=0, process=pid)
        made.range(0, 100, f"epoch_0-rank_{rank}", process=pid, thread=pid)
    found = summary_of(made, window=Window.GPU)
    assert [(d.rank, d.pid, d.compute_ns) for d in found.devices] == [(0, 111, 10), (1, 222, 11)]


def test_waiting_inside_a_collective_is_separated_from_its_transfer() -> None:
    ranks = []
    for rank, start in ((0, 0), (1, 960)):
        made = Made(rank=rank, world_size=2, path=f"rank{rank}", host="n", clock="unix")
        ranks.append(made.collective(start, 1000, size=1 << 20, members=2))
    (row,) = summary_of(*ranks, window=Window.GPU).collectives
    assert row.waiting_fraction == pytest.approx(960 / 1040)
    assert row.algorithm_bandwidth_gb_per_s == pytest.approx((1 << 20) / 40)


def test_a_little_send_recv_does_not_make_a_job_pipeline_bound() -> None:
    made = Made().step(0, 300, 0).event(0, 283).event(283, 300, "ncclDevKernel_SendRecv(ncclDevKernelArgs)")
    found = summary_of(made)
    assert found.pipeline is None
    assert found.devices[0].communication_ns == 17


def test_an_idle_percentage_is_withheld_when_most_steps_are_empty() -> None:
    made = Made()
    for i in range(32):
        made.step(i * 100, i * 100 + 100, i)
    made.event(0, 60).event(100, 160)
    found = summary_of(made)
    (device,) = found.devices
    assert (device.idle_ns, device.busy_fraction, device.idle_causes) == (None, None, [])
    assert "30 of 32 steps" in next(w.reason for w in found.quality.withheld if w.field == "idle_ns")
    assert found.quality.verdict is RecordingVerdict.DOUBTFUL
    assert device.compute_ns == 120


def test_idle_is_given_when_the_recording_is_whole() -> None:
    made = Made()
    for i in range(4):
        made.step(i * 100, i * 100 + 100, i).event(i * 100, i * 100 + 60)
    found = summary_of(made)
    assert (found.devices[0].idle_ns, found.quality.withheld) == (160, [])


def test_collectives_on_a_cpu_are_communication() -> None:
    made = Made().step(0, 100, 0)
    made.event(0, 60, "aten::mm", activity=Activity.CPU_OP)
    made.event(40, 90, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE, stream=2)
    (device,) = summary_of(made).devices
    assert (device.communication_ns, device.exposed_communication_ns) == (50, 30)
    assert device.overlap_fraction == pytest.approx(20 / 50)


def test_a_recording_with_nothing_in_it_is_unusable_and_says_so() -> None:
    found = summary_of(Made().step(0, 100, 0))
    assert found.quality.verdict is RecordingVerdict.UNUSABLE
    assert found.devices == []


def test_what_nsys_records_without_a_gpu_still_has_its_steps_per_process() -> None:
    made = Made(source="nsys")
    for process, length in ((7, 10), (8, 20)):
        for i in range(4):
            made.range(i * 100, i * 100 + length, f"batch_{i}", process=process, thread=process)
    found = summary_of(made)
    assert found.quality.verdict is RecordingVerdict.DOUBTFUL
    assert [f.what for f in found.quality.problems] == ["recorded without a GPU"] * 2
    assert sorted(each.durations_ns for each in found.steps.per_rank) == [[100] * 3 + [10], [100] * 3 + [20]]
    assert found.devices == []


def test_dropped_events_missing_launches_and_late_work_are_findings() -> None:
    made = Made().step(0, 100, 0).step(100, 200, 1)
    made.event(0, 90).event(110, 190, launch_ns=105).event(195, 400, launch_ns=198)
    made.extra["dropped_events"] = 7
    whats = {f.what: f.evidence for f in summary_of(made).quality.problems}
    assert "7 dropped" in whats["the profiler dropped events"]
    assert "2 of 3 kernels" in whats["idle causes and ranges are incomplete: launches are missing"]
    assert "work of the steps continues after their last mark" in whats


def test_ranks_profiled_over_different_steps_are_a_finding() -> None:
    ranks = []
    for rank, shift in ((0, 0), (1, 170)):
        made = Made(rank=rank, world_size=2, path=f"rank{rank}", host="n", clock="unix")
        for i in range(4):
            made.step(shift + i * 100, shift + i * 100 + 100, i).event(shift + i * 100, shift + i * 100 + 50)
        ranks.append(made)
    whats = [f.what for f in summary_of(*ranks).quality.problems]
    assert "ranks were not profiled over the same steps" in whats


def test_steps_found_in_different_ways_are_a_finding_and_both_are_named() -> None:
    marked = Made(rank=0, world_size=2, path="rank0", host="n", clock="unix")
    bare = Made(rank=1, world_size=2, path="rank1", host="n", clock="unix")
    for i in range(8):
        marked.range(i * 1000, i * 1000 + 1000, f"batch_{i}").event(i * 1000, i * 1000 + 900)
        bare.event(i * 1000, i * 1000 + 900)
    found = summary_of(marked, bare)
    assert found.steps.source == "range batch and periodicity of ampere_sgemm_128x64_nn"
    (finding,) = [f for f in found.quality.problems if "different ways" in f.what]
    assert "range batch in 1 of 2 processes" in finding.evidence


def test_idle_is_withheld_when_steps_between_counted_ones_are_empty() -> None:
    made = Made()
    for i in range(7):
        made.step(i * 100, i * 100 + 100, i)
        if i not in (2, 3, 4):
            made.event(i * 100, i * 100 + 90)
    found = summary_of(made)
    assert (found.steps.excluded_empty, found.devices[0].idle_ns) == (3, None)
    assert "3 of 7 steps" in next(w.reason for w in found.quality.withheld if w.field == "idle_ns")


def test_idle_stands_when_only_steps_before_or_after_the_window_are_empty() -> None:
    made = Made()
    for i in range(7):
        made.step(i * 100, i * 100 + 100, i)
        if i not in (0, 6):
            made.event(i * 100, i * 100 + 90)
    assert summary_of(made).devices[0].idle_ns == 50


def test_cuda_graphs_that_were_recorded_whole_are_reported_and_their_overlap_is_not_known() -> None:
    made = Made(source="nsys")
    for i in range(4):
        made.step(i * 100, i * 100 + 100, i)
        made.event(i * 100, i * 100 + 90, "CUDA graph 3", launch_ns=i * 100)
        made.event(i * 100 + 80, i * 100 + 95, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", launch_ns=i * 100)
    found = summary_of(made)
    (finding,) = [f for f in found.quality.problems if "CUDA graphs" in f.what]
    assert "4 graphs, 86% of kernel time (record with --cuda-graph-trace=node)" in finding.evidence
    (device,) = found.devices
    assert (device.compute_ns, device.communication_ns, device.overlap_fraction) == (360, None, None)
    assert device.steps[0].exposed_communication_ns is None
    assert {"communication_ns", "overlap_fraction"} <= {w.field for w in found.quality.withheld}
    assert "overlap_fraction" not in metrics_by_name(found)
    assert {(p.compute_ns, p.communication_ns) for p in found.phases} == {(None, None)}
    text = " ".join(render(found).split())
    assert "CUDA graphs were recorded whole (86% of kernel time)" in text
    assert "Kinds of work, all devices; communication: only outside of CUDA graphs" in text


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


@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("FSDP::pre_forward (blocks.{layer}), op_id = {i}", "the period of the kernel is a layer, not a training step"),
        ("FSDP::pre_forward (blocks.0), op_id = {i}", "the steps are not marked"),
        ("forward", "the steps are not marked"),
    ],
)
def test_a_periodicity_of_layers_is_not_taken_for_steps(module: str, what: str) -> None:
    """Two steps of eight layers, and nothing but the attention kernel to tell a period."""
    made = Made()
    for i in range(16):
        made.range(i * 100, i * 100 + 50, module.format(layer=i % 8, i=i))
        made.event(i * 100, i * 100 + 90, "flash_fwd_kernel", launch_ns=i * 100)
    (finding,) = summary_of(made).quality.problems
    assert finding.what.startswith(what)


def test_the_gpu_window_reaches_from_the_first_event_to_the_last_even_if_they_take_no_time() -> None:
    made = Made().event(0, 0).event(100, 200).event(300, 300)
    assert summary_of(made, window=Window.GPU).devices[0].window_ns == 300
