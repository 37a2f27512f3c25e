"""Trainings recorded here and now: the numbers of their traces are those that the training itself must have."""

from __future__ import annotations

import pytest

from harness.analysis.summary import RecordingVerdict, Summary
from harness.analysis.summary.problem_texts import PROFILER_WAITS
from harness.measure.paths import measure_one as measure

pytestmark = pytest.mark.train
pytest.importorskip("torch", reason="training needs PyTorch")

from tests.exercise_3.megatron_runs import train as train_megatron  # noqa: E402 - after the skip
from tests.exercises.launching import Run, completed  # noqa: E402 - as above

FLOAT32_BYTES = 4
WINDOW = ("--skip", "0", "--wait", "1", "--warmup", "1", "--active", "3", "--profiler", "torch")


@pytest.fixture(scope="module")
def two_ranks(ddp: Run) -> Summary:
    """The Summary of exercise 1 on two ranks, three recorded steps."""
    return measure([ddp.folder])


@pytest.fixture(scope="module")
def pipelined(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """The Summary of megatron-core with two stages and four micro-batches, three recorded iterations."""
    folder = tmp_path_factory.mktemp("pp") / "run"
    return measure([completed(train_megatron(folder, "--pp", 2, "--global-batch-size", 4, *WINDOW)).folder])


def test_two_ranks_of_ddp_are_one_job_of_cpu_devices_with_every_step(two_ranks: Summary) -> None:
    assert (two_ranks.ranks, two_ranks.world_size, two_ranks.backend) == ([0, 1], 2, "gloo")
    assert [d.device_kind for d in two_ranks.devices] == ["cpu", "cpu"]
    assert [len(r.durations_ns) for r in two_ranks.steps.per_rank] == [3, 3]
    # A busy machine may stop one rank when its window opens.
    assert {PROFILER_WAITS}.issuperset(
        f.what for f in two_ranks.quality.problems if f.severity is not RecordingVerdict.GOOD
    )
    assert len({tuple(step.step for step in device.steps) for device in two_ranks.devices}) == 1


def test_each_nanosecond_of_a_recorded_window_is_accounted_for(two_ranks: Summary, pipelined: Summary) -> None:
    for device in two_ranks.devices + pipelined.devices:
        parts = device.compute_ns + device.exposed_communication_ns + device.exposed_memory_ns + device.idle_ns
        assert parts == device.window_ns > 0
        assert sum(c.duration_ns for c in device.idle_causes) == device.idle_ns
        assert device.compute_ns > 0
        assert device.communication_ns > 0


def test_ddp_reduces_every_gradient_once_per_step_in_backward(two_ranks: Summary) -> None:
    reduced = next(c for c in two_ranks.collective_phases if (c.kind, c.phase) == ("all_reduce", "backward"))
    gradients = two_ranks.training[0].parameters * FLOAT32_BYTES
    assert reduced.bytes == gradients * 3 * 2  # three steps, two ranks
    matched = [c for c in two_ranks.collectives if c.kind == "all_reduce"]
    assert all(c.waiting_ns is not None and 0 <= c.waiting_ns <= c.duration_ns for c in matched)


def test_the_traces_steps_agree_with_the_trainings_own_clock(two_ranks: Summary) -> None:
    for rank, training in zip(two_ranks.steps.per_rank, two_ranks.training, strict=True):
        assert training.steps_counted == 3
        # The training's clock runs inside the step of the trace; a busy machine can put a rank aside in between.
        steps = list(zip(rank.durations_ns, training.step_durations_ns, strict=True))
        assert all(traced >= 0.99 * written for traced, written in steps)
        assert min(traced / written for traced, written in steps) < 1.25


def test_a_training_without_mixed_precision_multiplies_in_fp32_only(two_ranks: Summary) -> None:
    assert {k.precision for k in two_ranks.kinds if k.kind == "gemm"} == {"fp32"}


def test_a_recorded_pipeline_shows_its_stages_and_a_bubble(pipelined: Summary) -> None:
    found = pipelined.pipeline
    assert (found.stages, found.microbatches) == (2, 4)
    assert found.expected_bubble_fraction == pytest.approx(1 / 5)
    assert [(s.stage, s.rank) for s in found.per_stage] == [(0, 0), (1, 1)]
    for stage in found.per_stage:
        assert 0 < stage.schedule_bubble_fraction < 1
        assert stage.schedule_busy_ns <= stage.schedule_ns


def test_each_micro_batch_is_sent_once_forwards_and_once_backwards(pipelined: Summary) -> None:
    sent = next(c for c in pipelined.collectives if c.kind == "send")
    assert sent.count == 3 * 4 * 2
