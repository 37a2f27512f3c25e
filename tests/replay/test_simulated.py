"""A job replayed with one thing changed takes as long as the same job simulated with it changed."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.summary import KindTime, RankTraining, Replay, Summary
from harness.replay.remove.changes import READY_NS, computes_in_16_bits
from harness.traces.open import open_trace
from harness.traces.trace import Activity
from tests.real_traces import needs_real_traces, real_trace
from tests.replay.replaying import departures, replayed, step_with, summary_of
from tests.synthetic.columns import MAIN, Made
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob, PipelineJob

FP32 = "ampere_sgemm_128x64_nn"
COSTS = Costs()
LATE = {(1, step): 20 * MS for step in range(COSTS.steps)}
THIRD = {(0, step): 30 * MS for step in (1, 4, 7)}


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


@pytest.mark.parametrize(
    ("phase", "named"), [("forward", "forward"), ("backward", "backward"), ("optimizer", "optimizer")]
)
def test_a_rank_that_stands_still_is_charged_with_what_all_ranks_wait(phase: str, named: str) -> None:
    slow = replace(COSTS, stalls=LATE, stalled=phase)
    _, lost = departures(CpuJob(slow).traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].phase, lost[0].every) == ("host-stall", [1], named, 1)
    assert lost[0].lost_ns == pytest.approx(usually(slow) - usually(COSTS), rel=0.02)


@pytest.mark.parametrize("stalls", [{}, LATE])
def test_what_is_left_of_messages_is_their_transfer_that_no_finding_tells(stalls: dict[tuple[int, int], int]) -> None:
    """The others' waiting for a late rank is of that rank's finding."""
    replay, lost = replayed(CpuJob(replace(COSTS, stalls=stalls, stalled="forward")).traces())
    left = replay.remainder
    assert left is not None
    assert sum(left.model_dump().values()) == pytest.approx(replay.unexplained_ns, abs=1)
    told = next(found.lost_ns for found in lost if found.cause == "communication")
    assert left.communication_ns + told == pytest.approx(COSTS.transfer_ns, rel=0.02)
    assert left.communication_ns < 0.05 * told


def test_what_recurs_every_third_step_is_found_with_its_mean_cost() -> None:
    slow = replace(COSTS, stalls=THIRD, stalled="optimizer")
    _, lost = departures(CpuJob(slow).traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].every) == ("host-stall", [0], 3)
    assert lost[0].lost_ns == pytest.approx(usually(slow) - usually(COSTS), rel=0.05)


def test_of_six_steps_two_hits_are_a_period() -> None:
    """With so few steps the interval is wide, since ranks lose in different steps; it does not reach 0."""
    usual = replace(COSTS, steps=6)
    slow = replace(usual, stalls={(0, step): 30 * MS for step in (2, 5)}, stalled="optimizer")
    _, lost = departures(CpuJob(slow).traces())
    assert (lost[0].cause, lost[0].every) == ("host-stall", 3)
    assert lost[0].low_ns is not None and lost[0].low_ns > lost[0].lost_ns / 2
    assert lost[0].lost_ns == pytest.approx(usually(slow) - usually(usual), rel=0.05)


def test_loading_data_and_time_between_phases_have_their_own_causes() -> None:
    everyone = {(rank, step): 15 * MS for rank in range(2) for step in range(COSTS.steps)}
    for phase, cause, change in (("data", "data-stall", "no-data-stall"), ("between", "host-stall", "no-checkpoint")):
        slow = replace(COSTS, stalls=everyone, stalled=phase)
        replay, lost = departures(CpuJob(slow).traces())
        assert (lost[0].cause, lost[0].ranks) == (cause, [0, 1])
        assert step_with(replay, change) == pytest.approx(usually(COSTS), rel=0.03)
        assert lost[0].lost_ns == pytest.approx(15 * MS, rel=0.15)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("phase", "cause"), [("data", "data-stall"), ("optimizer", "extra-compute")])
def test_operators_that_one_rank_calls_outside_of_its_passes_cost_all_their_time(
    phase: str, cause: str, every: int
) -> None:
    more = {(1, step): 20 for step in range(COSTS.steps) if step % every == every - 1}
    slow = replace(COSTS, more=more, more_in=phase)
    _, lost = departures(CpuJob(slow).traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].every) == (cause, [1], every)
    assert lost[0].lost_ns == pytest.approx(usually(slow) - usually(COSTS), rel=0.05)


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


def test_an_optimizer_that_takes_longer_for_as_many_operators_is_not_more_work() -> None:
    _, lost = departures(CpuJob(replace(COSTS, optimizer_factor={1: 3})).traces())
    assert not lost


def test_a_process_that_falls_behind_inside_its_operators_is_not_said_to_be_stopped() -> None:
    """Only its own count of SIGCONT says so; Linux's count of waiting for a core says what it was."""
    stopped = replace(COSTS, held={(1, step): 25 * MS for step in (1, 3, 6)})
    replay, lost = replayed(CpuJob(stopped).traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].phase) == ("interrupted", [1], None)
    assert lost[0].lost_ns == pytest.approx(usually(stopped) - usually(COSTS), rel=0.05)
    assert step_with(replay, "no-pause") == pytest.approx(usually(COSTS), rel=0.03)
    waited = [RankTraining(rank=1, core_wait_ns=16 * MS)]
    replay, lost = replayed(CpuJob(stopped).traces(), waited)
    assert (lost[0].cause, lost[0].ranks) == ("noisy-neighbour", [1])
    assert step_with(replay, "no-noisy-neighbour") == replay.step_ns - lost[0].lost_ns


def test_a_host_that_falls_behind_counts_only_beyond_what_has_a_specific_cause() -> None:
    """What holds operators up is longer where there is more work: it must not count twice."""
    slow = replace(COSTS, held={(1, step): 25 * MS for step in (1, 3, 6)}, factor={1: 1.6})
    _, lost = departures(CpuJob(slow).traces())
    assert (lost[0].cause, lost[0].ranks) == ("long-sequences", [1])
    assert sum(found.lost_ns for found in lost) <= 1.02 * (usually(slow) - usually(COSTS))


def test_a_process_that_is_stopped_between_its_operators_has_no_stall_of_its_own() -> None:
    """Each time it is between two others: the program has no stall there in other steps."""
    stopped = replace(COSTS, strays={(1, step): 25 * MS for step in (1, 3, 6)})
    _, lost = replayed(CpuJob(stopped).traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].phase) == ("interrupted", [1], None)
    assert lost[0].lost_ns == pytest.approx(usually(stopped) - usually(COSTS), rel=0.05)


def test_a_process_that_counted_its_stops_is_charged_with_what_it_held_up_of_messages() -> None:
    stopped = replace(COSTS, strays={(1, 1): 25 * MS, (1, 4): 25 * MS}, late={2: 25 * MS, 6: 25 * MS})
    counted = [RankTraining(rank=0, continued=0), RankTraining(rank=1, continued=4)]
    _, lost = replayed(CpuJob(stopped).traces(), counted)
    assert (lost[0].cause, lost[0].ranks) == ("pause", [1])
    assert lost[0].lost_ns == pytest.approx(usually(stopped) - usually(COSTS), rel=0.05)


def test_a_stop_that_falls_into_data_loading_is_no_slow_data() -> None:
    """Twice of four times it is there by chance."""
    stopped = replace(
        COSTS, strays={(1, 1): 25 * MS, (1, 6): 25 * MS}, stalls={(1, 3): 25 * MS, (1, 4): 25 * MS}, stalled="data"
    )
    counted = [RankTraining(rank=0, continued=0), RankTraining(rank=1, continued=4)]
    _, lost = replayed(CpuJob(stopped).traces(), counted)
    assert [found.cause for found in lost if not found.standing] == ["pause"]
    assert lost[0].lost_ns == pytest.approx(usually(stopped) - usually(COSTS), rel=0.05)


def test_one_rank_with_more_to_compute_is_told_from_one_with_longer_sequences() -> None:
    more = replace(COSTS, more={(1, step): 12 for step in range(COSTS.steps)})
    longer = replace(COSTS, factor={1: 1.6})
    for costs, cause in ((more, "extra-compute"), (longer, "long-sequences")):
        replay, lost = replayed(CpuJob(costs).traces())
        assert (lost[0].cause, lost[0].ranks) == (cause, [1])
        assert lost[0].lost_ns == pytest.approx(usually(costs) - usually(COSTS), rel=0.05)
        assert step_with(replay, "rank-like-others") == pytest.approx(usually(COSTS), rel=0.02)


def test_more_samples_leave_the_optimizer_as_it_is_and_a_slower_core_does_not() -> None:
    """Both make the time between a rank's operators longer."""
    gaps = {1: 2.0}
    more = CpuJob(replace(COSTS, factor={1: 2.0}, gap_factor=gaps)).traces()
    slower = CpuJob(replace(COSTS, factor={1: 2.0}, gap_factor=gaps, optimizer_factor=gaps)).traces()
    for traces, cause in ((more, "long-sequences"), (slower, "noisy-neighbour")):
        _, lost = replayed(traces)
        assert (lost[0].cause, lost[0].ranks) == (cause, [1])


def test_a_longer_backward_pass_alone_is_no_longer_sample() -> None:
    """If the optimizer takes longer too, the core or its memory is slower; so little is not told."""
    backward = {1: 1.25}
    _, lost = replayed(CpuJob(replace(COSTS, backward_factor=backward)).traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].phase) == ("extra-compute", [1], "backward")
    _, lost = replayed(CpuJob(replace(COSTS, backward_factor=backward, optimizer_factor={1: 1.5})).traces())
    assert not [found for found in lost if not found.standing]


def test_a_host_that_falls_behind_by_little_is_not_told_for_a_chance_of_places() -> None:
    """5 % of a step, in steps that happen to be at a regular distance."""
    for held_ms, told in ((4, []), (15, [("interrupted", None)])):
        costs = replace(COSTS, steps=7, held={(1, step): held_ms * MS for step in (1, 3, 5)})
        _, lost = replayed(CpuJob(costs).traces())
        assert [(found.cause, found.every) for found in lost if not found.standing] == told


def test_without_phases_the_whole_work_of_ranks_is_compared() -> None:
    longer = replace(COSTS, factor={1: 2.0}, ranges=False)
    _, lost = replayed(CpuJob(longer).traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].phase) == ("extra-compute", [1], None)
    usual = usually(replace(COSTS, ranges=False))
    assert lost[0].lost_ns == pytest.approx(usually(longer) - usual, rel=0.1)
    _, lost = replayed(CpuJob(replace(COSTS, ranges=False)).traces())
    assert not [found for found in lost if not found.standing]


def test_on_gpus_a_rank_whose_kernels_take_longer_is_named() -> None:
    _, lost = departures(GpuJob(factor={1: 1.5}).traces())
    assert (lost[0].cause, lost[0].ranks) == ("extra-compute", [1])
    assert lost[0].lost_ns == pytest.approx(GpuJob(factor={1: 1.5}).mean_step_ns() - GpuJob().mean_step_ns(), rel=0.1)
    assert not [found for found in replayed(GpuJob().traces())[1] if not found.standing]


def test_more_to_compute_in_every_second_step_is_found() -> None:
    more = replace(COSTS, more={(1, step): 12 for step in (1, 3, 5, 7)})
    replay, lost = replayed(CpuJob(more).traces())
    assert (lost[0].cause, lost[0].every) == ("extra-compute", 2)
    assert lost[0].lost_ns == pytest.approx(usually(more) - usually(COSTS), rel=0.05)
    assert step_with(replay, "no-extra-compute") == pytest.approx(usually(COSTS), rel=0.02)


def test_a_healthy_job_has_no_departure_from_its_usual_course() -> None:
    _, lost = replayed(CpuJob(COSTS).traces())
    assert [found.cause for found in lost if not found.standing] == []


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


def test_on_gpus_the_slower_of_host_and_device_decides() -> None:
    """Launches of 10 µs hide behind kernels of 100 µs; launches of 200 µs do not."""
    for launch, kernel in ((10 * US, 100 * US), (200 * US, 100 * US)):
        job = GpuJob(launch_ns=launch, kernel_ns=kernel)
        replay, _ = replayed(job.traces())
        assert replay.step_ns == pytest.approx(job.mean_step_ns(first=0), abs=1)
        free = GpuJob(launch_ns=launch, kernel_ns=kernel, transfer_ns=0).mean_step_ns()
        assert replay.ideal_network_ns == pytest.approx(free, rel=0.02)
        faster = GpuJob(launch_ns=launch, kernel_ns=kernel // 2).mean_step_ns()
        products = [what.step_ns for what in replay.what_ifs if what.name == "products-x2"]
        assert (products or [replay.step_ns])[0] == pytest.approx(faster, rel=0.03)


def test_on_gpus_a_late_host_is_charged_with_the_other_ranks_waiting() -> None:
    late = {(1, step): 8 * MS for step in range(6)}
    slow = GpuJob(late=late)
    _, lost = replayed(slow.traces())
    assert (lost[0].cause, lost[0].ranks) == ("host-stall", [1])
    assert lost[0].lost_ns == pytest.approx(slow.mean_step_ns() - GpuJob().mean_step_ns(), rel=0.05)


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


def test_twice_the_micro_batch_loads_twice_the_data() -> None:
    """Neither loading nor computing has a fixed part here, but for the gaps and the optimizer."""
    slow = replace(COSTS, data_ns=40 * MS, steps=9)
    replay, _ = replayed(CpuJob(slow).traces())
    twice = replace(slow, data_ns=2 * slow.data_ns, operator_ns=2 * slow.operator_ns)
    assert step_with(replay, "micro-batch-x2") == pytest.approx(usually(twice) / 2, rel=0.02)


def test_data_that_workers_load_ahead_still_has_to_be_taken() -> None:
    slow = replace(COSTS, data_ns=40 * MS)
    replay, _ = replayed(CpuJob(slow).traces())
    prefetched = replace(slow, data_ns=READY_NS)
    assert step_with(replay, "no-data-stall") == pytest.approx(usually(prefetched), rel=0.01)


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


def test_a_job_whose_products_have_16_bits_gets_no_promise_of_16_bits() -> None:
    job = GpuJob(kernel_ns=MS)
    for made in job.made:
        made.names = [n.replace("ampere_sgemm", "ampere_bf16_s16816gemm_bf16") for n in made.names]
    assert "products-x2" not in [what.name for what in replayed(job.traces())[0].what_ifs]


def test_16_bits_are_promised_on_no_cpu_and_to_no_job_that_computes_in_them() -> None:
    assert "products-x2" not in [what.name for what in replayed(CpuJob(COSTS).traces())[0].what_ifs]
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


class CopyingJob(GpuJob):
    """Before each step's work every host waits in a copy of pageable memory, of which the device sees the last part."""

    HELD_NS = 6 * MS

    def _run(self, rank: int, free: int, count: int, more: float = 1.0) -> int:
        if count == self.kernels:
            made, begin = self.made[rank], self.now[rank]
            self.now[rank] = begin + self.HELD_NS
            end = self.now[rank] - 50 * US
            made.call(begin, self.now[rank], "cudaMemcpyAsync")
            made.event(
                end - 150 * US, end, "Memcpy HtoD (Pageable -> Device)", activity=Activity.MEMCPY,
                launch_ns=begin, launch_thread=MAIN, copy_kind=1, pageable=1, bytes=1 << 20,
            )  # fmt: skip
            free = max(free, end)
        return super()._run(rank, free, count, more)


def test_a_copy_that_holds_every_host_up_is_charged_with_the_time_before_its_work() -> None:
    slow = CopyingJob()
    _, lost = replayed(slow.traces())
    assert (lost[0].cause, lost[0].ranks, lost[0].what) == ("pageable", [0, 1], "cudaMemcpyAsync")
    assert lost[0].lost_ns == pytest.approx(slow.mean_step_ns() - GpuJob().mean_step_ns(), rel=0.05)
