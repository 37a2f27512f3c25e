"""A job replayed with one thing changed takes as long as the same job simulated with it changed."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.summary import KindTime, RankTraining, Replay, Summary
from harness.replay.remove.changes import READY_NS, computes_in_16_bits
from harness.traces.open import open_trace
from tests.real_traces import needs_real_traces, real_trace
from tests.replay.replaying import departures, replayed, step_with, summary_of
from tests.synthetic.columns import MAIN, Made
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob, PipelineJob

FP32 = "ampere_sgemm_128x64_nn"
TF32 = "sm86_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckcrs_nhwc_tilesize128x128x16_stage4_cudnn"
COSTS = Costs()
EVERY = range(COSTS.steps)
LATE = {(1, step): 20 * MS for step in EVERY}
EVERYONE = {(rank, step): 15 * MS for rank in range(2) for step in EVERY}
IN_THIRDS = {(0, step): 30 * MS for step in (1, 4, 7)}
HELD = {(1, step): 25 * MS for step in (1, 3, 6)}
COUNTED = [RankTraining(rank=0, continued=0), RankTraining(rank=1, continued=4)]


def usually(costs: Costs) -> float:
    return CpuJob(costs).mean_step_ns()


@settings(max_examples=30)
@given(
    late=st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 4)), st.integers(0, 40 * MS), max_size=6),
    transfer=st.integers(1, 30 * MS),
    messages=st.integers(1, 4),
    phase=st.sampled_from(("data", "forward", "backward", "optimizer", "between")),
)
def test_replayed_unchanged_it_takes_as_long_as_measured(
    late: dict[tuple[int, int], int], transfer: int, messages: int, phase: str
) -> None:
    costs = Costs(3, 5, stalls=late, stalled=phase, transfer_ns=transfer, messages=messages)
    replay, _ = replayed(CpuJob(costs).traces())
    assert replay.step_ns == pytest.approx(CpuJob(costs).mean_step_ns(first=0), abs=1)
    assert replay.error < 1e-6


def more_outside(phase: str, every: int) -> Costs:
    """Operators that one rank calls outside of its passes."""
    more = {(1, step): 20 for step in EVERY if step % every == every - 1}
    return replace(COSTS, more=more, more_in=phase)


SHORT, BARE = replace(COSTS, steps=6), replace(COSTS, ranges=False)
Found = dict[str, Any]
Change = tuple[str, float]  # and by how much the predicted step may differ
LOSSES: dict[str, tuple[Costs, Costs, list[RankTraining], Found, Change | None]] = {
    **{f"a rank stands still in {phase}": (
        replace(COSTS, stalls=LATE, stalled=phase), COSTS, [],
        {"cause": "host-stall", "ranks": [1], "phase": phase, "every": 1}, None)
       for phase in ("forward", "backward", "optimizer")},
    "what recurs every third step": (
        replace(COSTS, stalls=IN_THIRDS, stalled="optimizer"), COSTS, [],
        {"cause": "host-stall", "ranks": [0], "every": 3}, None),
    "of six steps two hits are a period": (
        replace(SHORT, stalls={(0, step): 30 * MS for step in (2, 5)}, stalled="optimizer"), SHORT, [],
        {"cause": "host-stall", "every": 3}, None),
    "data": (replace(COSTS, stalls=EVERYONE, stalled="data"), COSTS, [],
             {"cause": "data-stall", "ranks": [0, 1]}, ("no-data-stall", 0.03)),
    "time between the phases": (replace(COSTS, stalls=EVERYONE, stalled="between"), COSTS, [],
                                {"cause": "host-stall", "ranks": [0, 1]}, ("no-checkpoint", 0.03)),
    **{f"operators in {phase}, each {every} steps": (
        more_outside(phase, every), COSTS, [], {"cause": cause, "ranks": [1], "every": every}, None)
       for phase, cause in (("data", "data-stall"), ("optimizer", "extra-compute")) for every in (1, 3)},
    # only its own count of SIGCONT says that a process was stopped
    "a process that falls behind inside its operators": (
        replace(COSTS, held=HELD), COSTS, [], {"cause": "interrupted", "ranks": [1], "phase": None},
        ("no-pause", 0.03)),
    "a process that falls behind between its operators": (
        replace(COSTS, strays=HELD), COSTS, [], {"cause": "interrupted", "ranks": [1], "phase": None}, None),
    "a process that counted its stops, with the messages that they held up": (
        replace(COSTS, strays={(1, 1): 25 * MS, (1, 4): 25 * MS}, late={2: 25 * MS, 6: 25 * MS}), COSTS, COUNTED,
        {"cause": "pause", "ranks": [1]}, None),
    "stops of which half fall into data loading": (
        replace(COSTS, strays={(1, 1): 25 * MS, (1, 6): 25 * MS}, stalls={(1, 3): 25 * MS, (1, 4): 25 * MS},
                stalled="data"), COSTS, COUNTED, {"cause": "pause"}, None),
    "more to compute": (replace(COSTS, more={(1, step): 12 for step in EVERY}), COSTS, [],
                        {"cause": "extra-compute", "ranks": [1]}, ("rank-like-others", 0.02)),
    "longer sequences": (replace(COSTS, factor={1: 1.6}), COSTS, [],
                         {"cause": "long-sequences", "ranks": [1]}, ("rank-like-others", 0.02)),
    "a longer backward pass": (replace(COSTS, backward_factor={1: 1.25}), COSTS, [],
                               {"cause": "extra-compute", "ranks": [1], "phase": "backward"}, None),
    "without phases": (replace(BARE, factor={1: 2.0}), BARE, [],
                       {"cause": "extra-compute", "ranks": [1], "phase": None}, None),
    "more in every second step": (
        replace(COSTS, more={(1, step): 12 for step in (1, 3, 5, 7)}), COSTS, [],
        {"cause": "extra-compute", "every": 2}, ("no-extra-compute", 0.02)),
}  # fmt: skip


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_is_what_the_job_takes_longer_with_its_cause_ranks_place_and_period(case: str) -> None:
    slow, usual, training, expected, change = LOSSES[case]
    replay, lost = departures(CpuJob(slow).traces(), training)
    assert {name: getattr(lost[0], name) for name in expected} == expected
    assert lost[0].lost_ns == pytest.approx(usually(slow) - usually(usual), rel=0.1)
    assert lost[0].low_ns is not None and lost[0].low_ns > 0
    assert change is None or step_with(replay, change[0]) == pytest.approx(usually(usual), rel=change[1])


GAPS = {1: 2.0}
CAUSES: list[tuple[Costs, list[RankTraining], list[str]]] = [
    (COSTS, [], []),
    (BARE, [], []),
    (replace(COSTS, optimizer_factor={1: 3}), [], []),  # it takes longer for as many operators
    # a core or its memory is slower where the optimizer takes longer too; so little is not told
    (replace(COSTS, backward_factor={1: 1.25}, optimizer_factor={1: 1.5}), [], []),
    (replace(COSTS, factor={1: 2.0}, gap_factor=GAPS), [], ["long-sequences"]),
    (replace(COSTS, factor={1: 2.0}, gap_factor=GAPS, optimizer_factor=GAPS), [], ["noisy-neighbour"]),
    # Linux's count of waiting for a core says what it was
    (replace(COSTS, held=HELD), [RankTraining(rank=1, core_wait_ns=16 * MS)], ["noisy-neighbour"]),
    # 5 % of a step, in steps that happen to be at a regular distance
    *((replace(COSTS, steps=7, held={(1, step): ms * MS for step in (1, 3, 5)}), [], told)
      for ms, told in ((4, []), (15, ["interrupted"]))),
    (replace(COSTS, strays={(1, 1): 25 * MS, (1, 6): 25 * MS}, stalls={(1, 3): 25 * MS, (1, 4): 25 * MS},
             stalled="data"), COUNTED, ["pause"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CAUSES)
def test_these_are_all_departures_from_the_usual_course(case: Any) -> None:
    costs, training, told = case
    _, lost = departures(CpuJob(costs).traces(), training)
    assert [found.cause for found in lost] == told


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("phase", ["between", "optimizer", "data"])
@pytest.mark.parametrize("work", ["stalls", "more"])
def test_what_ranks_wait_for_one_that_is_outside_of_its_passes_is_no_communication(
    work: str, phase: str, rank: int
) -> None:
    """A callback that copies the model on one rank, in Python or by operators: the others wait in a collective."""
    every = range(COSTS.steps)
    late = replace(COSTS, stalls={(rank, step): 30 * MS for step in every}, stalled=phase)
    if work == "more":
        late = replace(COSTS, more={(rank, step): 20 for step in every}, more_in=phase)

    def communication(costs: Costs) -> int:
        _, lost = replayed(CpuJob(costs).traces())
        return sum(found.lost_ns for found in lost if found.cause == "communication")

    assert communication(late) <= communication(COSTS) + 0.01 * usually(COSTS)


def test_a_host_that_falls_behind_counts_only_beyond_what_has_a_specific_cause() -> None:
    """What holds operators up is longer where there is more work: it must not count twice."""
    slow = replace(COSTS, held=HELD, factor={1: 1.6})
    _, lost = departures(CpuJob(slow).traces())
    assert (lost[0].cause, lost[0].ranks) == ("long-sequences", [1])
    assert sum(found.lost_ns for found in lost) <= 1.02 * (usually(slow) - usually(COSTS))


def test_messages_that_take_no_time_and_accumulated_gradients() -> None:
    slow = replace(COSTS, transfer_ns=12 * MS, steps=9)
    replay, _ = replayed(CpuJob(slow).traces())
    assert step_with(replay, "no-communication") == pytest.approx(usually(replace(slow, transfer_ns=0)), rel=0.01)
    accumulated = CpuJob(replace(slow, accumulation=2)).mean_step_ns(first=1)
    assert step_with(replay, "gas-x2") == pytest.approx(accumulated, rel=0.02)
    assert replay.ideal_network_ns == step_with(replay, "no-communication")


def test_one_rank_of_a_job_waits_for_ranks_that_are_not_known() -> None:
    replay, _ = replayed(CpuJob(replace(COSTS, stalls={(1, 3): 16 * MS})).traces()[:1])
    assert replay.unknown_ns == pytest.approx(COSTS.transfer_ns + 16 * MS / COSTS.steps, rel=0.05)
    assert replayed(CpuJob(COSTS).traces())[0].unknown_ns == 0


def test_two_processes_that_send_nothing_are_replayed_side_by_side() -> None:
    traces = CpuJob(replace(COSTS, messages=0)).traces()
    assert not any(len(trace.collectives) for trace in traces)
    replay, _ = replayed(traces)
    assert replay.error < 1e-6 and replay.unknown_ns == 0


def test_gradients_in_one_bucket_in_place_of_many() -> None:
    many = replace(COSTS, messages=16, transfer_ns=2 * MS)
    traces = CpuJob(many).traces()
    for trace in traces:
        trace.collectives.bytes[:] = 5000
    replay, lost = replayed(traces)
    found = next(cause for cause in lost if cause.cause == "small-buckets")
    assert found.standing and "16 messages of 5 kB" in found.evidence
    assert step_with(replay, "one-bucket") == pytest.approx(usually(replace(many, messages=1)), rel=0.05)
    change = next(what for what in replay.what_ifs if what.name == "one-bucket")
    assert change.at_most and change.low_ns is None and change.high_ns, "on CPUs a run gains more"


@pytest.mark.parametrize("stage", range(4))
def test_a_stage_of_a_pipeline_waits_for_both_neighbours(stage: int) -> None:
    usual, slow = PipelineJob(stages=4), PipelineJob(stages=4, factor={stage: 1.5})
    replay, lost = replayed(slow.traces())
    assert (lost[0].cause, lost[0].ranks) == ("uneven-stages", [stage])
    assert lost[0].lost_ns == pytest.approx(slow.mean_step_ns() - usual.mean_step_ns(), rel=0.05)
    assert replay.unknown_ns == 0


def test_without_a_peer_s_name_a_stage_between_two_others_is_not_joined() -> None:
    replay, _ = replayed(PipelineJob(stages=4, named=False).traces())
    assert replay.unknown_ns > 0.1 * replay.step_ns


def test_a_call_that_launches_waits_for_its_own_stream_not_for_what_a_data_loader_s_stream_ends_meanwhile() -> None:
    """A loader's thread copies on its own stream, at intervals that do not depend on the training. Now and then a
    launch takes long, and returns right after such a copy: by chance."""
    made, step_ns, kernels = Made(device_names={0: "A100"}), 100 * MS, 9
    for step in range(12):
        at = step * step_ns
        made.copy(
            at - 60 * MS, at + 20 * MS - 10 * US, 1 << 28, stream=16, launch_ns=max(at - 80 * MS, 0), launch_thread=2
        )
        free = at
        for kernel in range(kernels):
            slow = step % 4 == 2 and kernel == 3
            call = at + 20 * MS - 40 * US if slow else at + kernel * 100 * US
            made.call(call, call + (45 * US if slow else 5 * US), "cudaLaunchKernel")
            start = max(free, call + 5 * US)
            free = start + 11 * MS
            made.event(start, free, FP32, launch_ns=call, launch_thread=MAIN)
        made.call(at + 20 * MS + 50 * US, free + 5 * US, "cudaStreamSynchronize")
        made.step(at, at + step_ns, step)
    replay, _ = replayed([made.trace()])
    assert step_with(replay, "products-x2") < 0.6 * step_ns, "not held up by the loader's copies"


READ = replace(COSTS, data_ns=40 * MS, steps=9)
TWICE = replace(READ, data_ns=2 * READ.data_ns, operator_ns=2 * READ.operator_ns)


@pytest.mark.parametrize(
    ("change", "step_ns"),
    [
        ("micro-batch-x2", usually(TWICE) / 2),  # nothing has a fixed part, but for the gaps and the optimizer
        ("no-data-stall", usually(replace(READ, data_ns=READY_NS))),  # what workers loaded still has to be taken
    ],
)
def test_loading_twice_as_much_or_ahead_is_predicted(change: str, step_ns: float) -> None:
    assert step_with(replayed(CpuJob(READ).traces())[0], change) == pytest.approx(step_ns, rel=0.02)


@pytest.mark.parametrize(("name", "at_best"), [("NVIDIA A100-SXM4-80GB", 16), ("Tesla V100-SXM2-32GB", 125 / 15.7)])
def test_16_bits_promise_a_range_from_twice_as_fast_to_the_ratio_of_the_device_s_peaks(
    name: str, at_best: float
) -> None:
    job = GpuJob(kernel_ns=MS, ranks=1, transfer_ns=0)
    for made in job.made:
        made.identity["device_names"] = {0: name}
    replay, _ = replayed(job.traces())
    found = next(what for what in replay.what_ifs if what.name == "products-x2")
    best = GpuJob(kernel_ns=round(MS / at_best), ranks=1, transfer_ns=0).mean_step_ns()
    careful = GpuJob(kernel_ns=MS // 2, ranks=1, transfer_ns=0).mean_step_ns()
    assert found.ranged and found.step_ns == pytest.approx(careful, rel=0.02)
    assert found.low_ns == pytest.approx(best, rel=0.05) and found.high_ns == pytest.approx(careful, rel=0.02)
    assert "in fp16" in found.meaning if "V100" in name else "in bf16" in found.meaning
    assert f"fp32 2 to {at_best:.3g} times as fast" in found.meaning


@pytest.mark.parametrize(("name", "left"), [(FP32, 1 / 2), (TF32, 2 / 3)])
def test_products_in_32_bits_cost_what_16_bits_save_at_least(name: str, left: float) -> None:
    job = GpuJob(kernel_ns=MS, ranks=1, transfer_ns=0)
    for made in job.made:
        made.names = [name if known == FP32 else known for known in made.names]
    _, lost = replayed(job.traces())
    in_16_bits = GpuJob(kernel_ns=round(left * MS), ranks=1, transfer_ns=0).mean_step_ns()
    (found,) = (each for each in lost if each.cause == "fp32")
    assert found.lost_ns == pytest.approx(job.mean_step_ns() - in_16_bits, rel=0.02)


def test_16_bits_are_promised_on_no_cpu_and_to_no_job_that_computes_in_them() -> None:
    job = GpuJob(kernel_ns=MS)
    for made in job.made:
        made.names = [n.replace("ampere_sgemm", "ampere_bf16_s16816gemm_bf16") for n in made.names]
    for traces in (job.traces(), CpuJob(COSTS).traces()):
        assert "products-x2" not in [what.name for what in replayed(traces)[0].what_ifs]
    mixed = [
        KindTime(kind="gemm", precision=p, count=1, duration_ns=ns, share=0.5) for p, ns in (("bf16", 6), ("fp32", 5))
    ]
    assert computes_in_16_bits(Summary(kinds=mixed)) and not computes_in_16_bits(Summary(kinds=mixed[1:]))


@pytest.mark.parametrize(("kernel", "launch"), [(2 * MS, 10 * US), (50 * US, 300 * US)])
def test_twice_the_micro_batch_gains_at_most_what_is_not_work_of_the_device(kernel: int, launch: int) -> None:
    s = summary_of(GpuJob(kernel_ns=kernel, launch_ns=launch).traces())
    assert s.replay is not None
    work = max(device.compute_ns for device in s.devices) / s.replay.steps
    found = {what.name: what for what in s.replay.what_ifs}
    assert kernel > MS or "micro-batch-x2" in found
    for what in found.values():
        assert what.name == "products-x2" or what.step_ns >= 0.998 * work


def measured_ns(path: str) -> tuple[Replay, list[int]]:
    (trace,) = (open_trace(real_trace(path)),)
    summary = summary_of([trace])
    assert summary.replay is not None
    return summary.replay, [ns for rank in summary.steps.per_rank for ns in rank.durations_ns]


@needs_real_traces
def test_data_loaded_by_workers_takes_about_as_long_as_a_real_recording_with_workers() -> None:
    """Of the recording with workers, the usual step: while it began, the workers did, too."""
    replay, _ = measured_ns("kineto_resnet50_workers/num_workers_0.json.gz")
    _, with_workers = measured_ns("kineto_resnet50_workers/num_workers_4.json.gz")
    assert step_with(replay, "no-data-stall") == pytest.approx(median(with_workers), rel=0.15)
    assert step_with(replay, "no-data-stall") == pytest.approx(mean(with_workers[1:]), rel=0.15)


@needs_real_traces
def test_the_range_of_16_bits_holds_what_a_real_recording_in_bf16_took() -> None:
    replay, _ = measured_ns("../gallery/pairs/sc23_dali.sqlite.gz")
    other, in_bf16 = measured_ns("../gallery/pairs/sc23_dali_amp_bf16.sqlite.gz")
    found = next(what for what in replay.what_ifs if what.name == "products-x2")
    assert found.low_ns < mean(in_bf16) < found.high_ns < 0.6 * replay.step_ns
    assert "products-x2" not in [what.name for what in other.what_ifs]
