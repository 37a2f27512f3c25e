"""The answer names the largest avoidable part, and a command that a run of ours can paste."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.summary import (
    Collective,
    Copy,
    Device,
    Finding,
    IdleCause,
    KindTime,
    Pipeline,
    Quality,
    Spread,
    Stage,
    Steps,
    Straggler,
    Summary,
    Training,
    Verdict,
)
from harness.report import render
from harness.report.next_command import Flags, change, in_lines
from harness.report.verdict import avoidable, verdict

MS = 1_000_000


def summary(
    compute: int = 60, exposed: int = 0, copying: int = 0, idle: dict[str, int] | None = None, **more: Any
) -> Summary:
    """One device of a window of 100 ms and steps of 10 ms; parts in milliseconds."""
    causes = [IdleCause(cause=c, duration_ns=ms * MS, share=0.0) for c, ms in (idle or {}).items()]
    device = Device(
        window_ns=100 * MS,
        compute_ns=compute * MS,
        communication_ns=exposed * MS,
        exposed_communication_ns=exposed * MS,
        overlapped_communication_ns=0,
        memory_ns=copying * MS,
        exposed_memory_ns=copying * MS,
        idle_ns=sum((idle or {}).values()) * MS,
        rank=0,
        device=0,
        source="made",
        gpu_events=1,
        kernels=1,
        idle_causes=causes,
    )
    spread = Spread(
        count=10, median_ns=10 * MS, min_ns=10 * MS, max_ns=10 * MS, p10_ns=10 * MS, p90_ns=10 * MS
    )
    given: dict[str, Any] = {"devices": [device], "idle_causes": causes} | more
    given.setdefault("steps", Steps(source="made", counted=10, duration=spread))
    return Summary(**given)


def run(exercise: int, *flags: str, **asked: Any) -> dict[str, Any]:
    """What a Summary of a run of ours adds."""
    return {
        "run": {"command": ["slurm.sh", "-e", str(exercise), *flags]},
        "experiment": {"exercise": exercise} | asked,
        "training": [Training(rank=0, micro_batch_size=2, gradient_accumulation_steps=1)],
    }


def test_the_shares_and_the_step_are_told_first() -> None:
    first = verdict(summary(compute=60, exposed=25, copying=5, idle={"other": 10})).sentences[0]
    assert first == (
        "A step takes 10.0 ms: 60.0 % computing, 25.0 % communicating with nothing computed meanwhile, "
        "5.0 % copying, 10.0 % idle."
    )


def test_the_largest_avoidable_part_comes_with_its_time_per_step() -> None:
    second = verdict(summary(idle={"data loading": 30, "launch-bound": 10})).sentences[1]
    assert second.startswith(
        "The largest avoidable part is waiting for data: 30.0 % of the time, about 3.00 ms a step"
    )


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (
            summary(idle={"data loading": 40}, **run(1, "--slow-dataloading", slow_dataloading=True)),
            "bash slurm.sh -e 1",
        ),
        (
            summary(exposed=40, **run(2, "--", "--ds-no-overlap", overlap_comm=False)),
            "bash slurm.sh -e 2",
        ),
        (
            summary(exposed=40, **run(2, "--ds-heavy-comm", overlap_comm=True, heavy_comm=True)),
            "bash slurm.sh -e 2",
        ),
        (
            summary(exposed=40, **run(1, "-n", "2")),
            "bash slurm.sh -e 1 -n 2 --gradient-accumulation-steps 4",
        ),
        (
            summary(idle={"launch-bound": 40}, **run(1, "--micro-batch-size=2")),
            "bash slurm.sh -e 1 --micro-batch-size 4",
        ),
        (
            summary(compute=100, kinds=[KindTime(kind="gemm", precision="fp32", count=1, duration_ns=90 * MS, share=1)],
                    **run(2)),
            "bash slurm.sh -e 2 --mixed-precision",
        ),
        (
            summary(compute=100, kinds=[KindTime(kind="gemm", precision="fp32", count=1, duration_ns=90 * MS, share=1)],
                    **run(3, "--no-mixed-precision", mixed_precision=False)),
            "bash slurm.sh -e 3 --mixed-precision",
        ),
        (
            summary(exposed=40, **run(3, "--tp", "4", tp=4)),
            "bash slurm.sh -e 3 --tp 2",
        ),
    ],
)  # fmt: skip
def test_the_next_command_is_the_run_with_one_thing_changed(given: Summary, command: str) -> None:
    assert verdict(given).command == command


def pipeline(measured: float) -> Pipeline:
    """Two stages, the second busier; the schedule alone predicts a bubble of 20 %."""
    stages = [
        Stage(stage=number, rank=number, window_ns=100, busy_ns=busy, bubble_fraction=measured, schedule_ns=100,
              schedule_busy_ns=busy, schedule_bubble_fraction=measured, warmup_ns=0, steady_ns=0, cooldown_ns=0,
              send_recv_ns=0)
        for number, busy in enumerate((70, 80))
    ]  # fmt: skip
    return Pipeline(
        stages=2,
        microbatches=4,
        virtual_stages=1,
        expected_bubble_fraction=0.2,
        mean_bubble_fraction=measured,
        per_stage=stages,
    )


def test_a_pipeline_that_its_schedule_leaves_empty_is_told_to_take_more_micro_batches() -> None:
    answer = verdict(summary(pipeline=pipeline(0.25), world_size=4, **run(3, "--pp", "2", pp=2, tp=2)))
    assert "the pipeline's bubble: 25.0 %" in answer.sentences[1]
    assert answer.command == "bash slurm.sh -e 3 --pp 2 --global-batch-size 16"


def test_a_pipeline_of_unequal_stages_is_told_which_is_slow() -> None:
    answer = verdict(summary(pipeline=pipeline(0.4), world_size=4, **run(3, "--pp", "2", pp=2, tp=2)))
    assert "the rest is waiting for stage 1, which works 80.0 % of the time" in answer.sentences[1]
    assert "give stage 1 fewer layers" in answer.sentences[2]
    assert answer.command is None  # more micro-batches would not mend that


def test_waiting_for_one_rank_is_called_that() -> None:
    collective = Collective(
        kind="all_reduce", count=1, ranks=2, duration_ns=10, mean_ns=5, waiting_ns=9, transfer_ns=1
    )
    straggler = Straggler(rank=3, last_arrivals=9, collectives=10, mean_lateness_ns=5, evidence="…")
    answer = verdict(summary(exposed=40, collectives=[collective], stragglers=[straggler], **run(1)))
    assert "90.0 % of it waiting for the last rank" in answer.sentences[1]
    assert "rank 3" in answer.sentences[1]
    assert answer.command is None  # no flag of ours makes a slow node fast


def test_someone_elses_trace_gets_advice_and_no_command() -> None:
    answer = verdict(summary(idle={"launch-bound": 40}))
    assert answer.command is None
    assert "torch.compile" in answer.sentences[-1]


def test_nothing_avoidable_is_said_as_such() -> None:
    answer = verdict(summary(compute=99, idle={"launch-bound": 1}))
    assert "No part that a rule calls avoidable" in answer.sentences[-1]
    assert answer.command is None


def test_an_unusable_recording_is_said_before_any_number() -> None:
    finding = Finding(severity=Verdict.UNUSABLE, what="events are missing", evidence="7 of 9")
    answer = verdict(summary(quality=Quality(verdict=Verdict.UNUSABLE, findings=[finding])))
    assert answer.sentences[0] == "Do not build on these numbers: events are missing (7 of 9)."


def test_a_run_without_a_trace_is_answered_from_its_metrics() -> None:
    training = Training(rank=0, median_step_ns=10 * MS, median_data_ns=4 * MS, data_fraction=0.4)
    answer = verdict(Summary(training=[training]))
    assert answer.sentences[0] == "A step takes 10.0 ms by the training's own clock: 4.00 ms loading data."
    assert "waiting for data: 40.0 %" in answer.sentences[1]


def test_nothing_recorded_is_no_answer() -> None:
    assert verdict(Summary()).sentences == ["Nothing was recorded that tells where the time went."]


def test_pageable_copies_are_told_to_be_pinned() -> None:
    copy = Copy(direction="copy H2D", count=1, bytes=1, duration_ns=1, pageable_ns=1, pageable_count=1)
    (found,) = [a for a in avoidable(summary(copying=40, copies=[copy])) if a.what.startswith("copies")]
    assert "pin_memory=True" in found.change
    assert found.share == pytest.approx(0.4)


def test_the_terminal_says_the_answer_before_the_recordings_quality() -> None:
    text = render(summary(idle={"data loading": 40}, **run(1, "--slow-dataloading", slow_dataloading=True)))
    assert text.index("A step takes") < text.index("bash slurm.sh -e 1") < text.index("Recording: ")


def test_flags_are_replaced_wherever_and_however_they_stand() -> None:
    given = ["slurm.sh", "-e", "1", "--seed=3", "--", "--micro-batch-size", "2", "--no-profile"]
    changed = change(given, Flags(put={"--seed": "4", "--micro-batch-size": "8"}, drop=["--no-profile"]))
    assert changed == ["slurm.sh", "-e", "1", "--seed", "4", "--micro-batch-size", "8"]


def test_a_long_command_can_be_pasted_from_the_terminal() -> None:
    shown = in_lines("bash slurm.sh -e 1 --data '/a folder/with spaces.json' " + "--sbatch x=y " * 12, 60)
    assert all(len(line) <= 62 for line in shown)
    assert all(line.endswith(" \\") for line in shown[:-1])
    assert any("'/a folder/with spaces.json'" in line for line in shown)
