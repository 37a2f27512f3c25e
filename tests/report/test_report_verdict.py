"""The answer names the largest avoidable part, and a command that a run of ours can paste."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from harness.analysis.metric_values import waiting_share
from harness.analysis.summary import (
    CodeLocation,
    Collective,
    Copy,
    JobTime,
    LineShare,
    MonitorDevice,
    Pipeline,
    PipelineStage,
    Problem,
    Quality,
    RankTraining,
    RecordingVerdict,
    Steps,
    Straggler,
    Summary,
)
from harness.cli.launch.launch import launch_argv
from harness.experiment.exercises import DDP, DeepSpeed, Experiment, Megatron
from harness.experiment.parse import command_of
from harness.explain.answer import verdict
from harness.explain.commands import changed_command, in_lines
from harness.explain.findings import reason_of
from harness.launch.job import Machine, resolve
from harness.report.tables.terminal import render
from harness.site.site import load_site
from tests.report.given_summary import FP32, MS, equal, run, summary, text

MORE_MICRO_BATCHES = "bash slurm.sh -e 3 -- --tp 2 --pp 2 --global-batch-size 16"


@pytest.mark.parametrize(
    ("name", "half"), [("Tesla V100-SXM2-32GB", "fp16"), ("NVIDIA A100-SXM4-40GB", "bf16"), ("made up", "bf16")]
)
def test_no_precision_is_advised_that_the_device_does_not_have(name: str, half: str) -> None:
    slow = summary(compute=100, kinds=[FP32])
    on = slow.model_copy(update={"devices": [slow.devices[0].model_copy(update={"name": name})]})
    said = text(verdict(on))
    assert half in said
    assert {"fp16": "bf16", "bf16": "fp16"}[half] not in said


def test_steps_that_are_left_out_as_warm_up_are_told() -> None:
    """Without a word on it a first step of 80 ms beside three of 10 would be nowhere."""
    given = summary(compute=99, idle={"other": 1})
    assert not given.steps.excluded_warmup and "warm-up" not in text(verdict(given))
    steps = given.steps.model_copy(update={"excluded_warmup": 1})
    said = text(verdict(given.model_copy(update={"steps": steps})))
    assert "The first step is not counted (warm-up), because it takes more than 2 times as long as later steps" in said
    periods = steps.model_copy(update={"source": "periodicity of k"})
    said = text(verdict(given.model_copy(update={"steps": periods})))
    assert "The first period is not counted" in said and "as long as later periods" in said


def test_the_shares_and_the_step_come_first() -> None:
    first = verdict(summary(compute=60, exposed=25, copying=5, idle={"other": 10})).further[-1]
    assert first == (
        "A step takes 10.0 ms on average: 60.0 % computing, 25.0 % exposed communication, 5.0 % copying, 10.0 % idle."
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"mean_ns": 11 * MS}, "A step takes 11.0 ms on average: "),
        ({"mean_ns": 20 * MS}, "A step takes 20.0 ms on average (median 10.0 ms): "),
        (
            {"mean_ns": 40 * MS, "between_ns": 35 * MS},
            "A step takes 40.0 ms on average (median 10.0 ms), 5.00 ms inside its mark and 35.0 ms between the steps: ",
        ),
        ({"mean_ns": 10 * MS, "on_device": True}, "A step takes 10.0 ms on the device on average (the host is ahead"),
    ],
)
def test_a_step_is_told_by_its_mean_where_its_median_is_not_the_usual_step(found: dict[str, Any], said: str) -> None:
    given = summary(steps=Steps(source="made", counted=10, duration=equal(10, 10 * MS), **found))
    assert verdict(given).further[0].startswith(said)
    told = "inside its mark" in said
    assert ("35.0 ms between the steps" in render(given).split("Steps: ")[1]) == told


def test_the_largest_avoidable_part_comes_with_its_time_per_step() -> None:
    (said,) = verdict(summary(idle={"data loading": 30, "launch-bound": 10})).sentences
    assert said.startswith("The largest avoidable part is waiting for data: 30.0 % of the time, about 3.00 ms a step")


@pytest.mark.parametrize(
    ("given", "command"),
    [
        (summary(idle={"data loading": 40}, **run(1, "--slow-dataloading", slow_dataloading=True)), "-e 1"),
        (summary(exposed=40, **run(2, "--", "--ds-no-overlap", overlap_comm=False)), "-e 2"),
        (
            summary(exposed=40, **run(2, "--ds-heavy-comm", heavy_comm=True, mixed_precision=True)),
            "-e 2 -- --mixed-precision",
        ),
        (summary(exposed=40, **run(1, "-n", "2", nodes=2)), "-e 1 -n 2 -- --gradient-accumulation-steps 4"),
        (
            summary(idle={"launch-bound": 40}, **run(1, "--micro-batch-size=2", micro_batch_size=2)),
            "-e 1 -- --micro-batch-size 4",
        ),
        (summary(compute=100, kinds=[FP32], **run(2)), "-e 2 -- --mixed-precision"),
        (
            summary(compute=100, kinds=[FP32], **run(3, "--no-mixed-precision", mixed_precision=False)),
            "-e 3 -- --mixed-precision",
        ),
        (summary(exposed=40, **run(3, "--tp", "4", tp=4)), "-e 3 -- --tp 2"),
    ],
)
def test_the_next_command_is_the_run_with_one_thing_changed(given: Summary, command: str) -> None:
    assert verdict(given).command == f"bash slurm.sh {command}"


def pipeline(
    measured: float, window_ns: int = 100, busy: tuple[int, int] = (70, 80), communication: int = 0
) -> Pipeline:
    """Two stages, the second busier; the schedule alone predicts a bubble of 20 %."""
    stages = [
        PipelineStage(
            stage=number, rank=number, window_ns=window_ns, busy_ns=ns, bubble_fraction=measured, schedule_ns=100,
            schedule_busy_ns=ns, schedule_bubble_fraction=measured, warmup_ns=0, steady_ns=0, cooldown_ns=0,
            send_recv_ns=0, bubble_communication_ns=communication,
        )
        for number, ns in enumerate(busy)
    ]  # fmt: skip
    return Pipeline(
        stages=2, microbatches=4, virtual_stages=1, expected_bubble_fraction=0.2,
        mean_bubble_fraction=measured, per_stage=stages,
    )  # fmt: skip


def pipelined(measured: float, exposed: int = 0, **stages: Any) -> Summary:
    """A run of exercise 3 with such a pipeline."""
    made = pipeline(measured, **stages)
    return summary(exposed=exposed, pipeline=made, world_size=4, **run(3, "--pp", "2", pp=2, tp=2))


def test_a_pipeline_that_its_schedule_leaves_empty_gets_the_advice_to_take_more_micro_batches() -> None:
    said = verdict(pipelined(0.25))
    assert "the pipeline's bubble: 25.0 %" in text(said)
    assert said.command == MORE_MICRO_BATCHES


def test_the_slow_stage_of_an_unequal_pipeline_is_named() -> None:
    said = verdict(pipelined(0.4, busy=(40, 80)))
    assert "the rest is waiting for stage 1, which works 80.0 % of that time" in text(said)
    assert "give stage 1 fewer layers" in text(said)
    assert said.command is None  # more micro-batches would not help


def test_a_bubble_is_weighed_in_the_whole_step_and_explained_in_its_schedule() -> None:
    given = summary(pipeline=pipeline(0.25, window_ns=400))
    (found,) = [found for found in given.findings if found.cause == "bubble"]
    assert found.share == pytest.approx((30 + 20) / 800)
    assert reason_of(given, found).why.startswith("It is 25.0 % of the schedule: 2 stages share 4 micro-batches")


@pytest.mark.parametrize("measured", [0.25, 0.4])
def test_equal_stages_get_the_advice_to_take_more_micro_batches_however_large_the_bubble(measured: float) -> None:
    said = verdict(pipelined(measured, busy=(70, 70)))
    assert "fewer layers" not in text(said)
    assert said.command == MORE_MICRO_BATCHES


def test_a_bubble_mostly_of_the_schedule_gets_the_advice_of_more_micro_batches_and_names_the_slow_stage() -> None:
    """As with two stages and 8 micro-batches on two cores: 19.5 % where the schedule alone leaves 11.1 %."""
    said = verdict(pipelined(0.36, busy=(56, 72)))
    assert "the rest is waiting for stage 1, which works 72.0 % of that time" in text(said)
    assert said.command == MORE_MICRO_BATCHES


def test_communication_inside_the_bubble_counts_as_bubble() -> None:
    """Two micro-batches of two stages: 45 ms of 100 communicate, 40 of them because a stage waits for the other."""
    given = pipelined(0.375, exposed=45, busy=(60, 60), communication=40)
    shares = {found.cause: found.share for found in given.findings}
    assert shares["communication"] == pytest.approx(0.05)
    assert shares["bubble"] == pytest.approx(0.4)
    said = verdict(given)
    assert "40.0 % of the time, is shown as communication" in text(said)
    assert said.command == MORE_MICRO_BATCHES


def test_a_cpu_gets_no_advice_on_overlap_which_it_cannot_show() -> None:
    given = summary(exposed=40, **run(2, "--", "--ds-no-overlap", overlap_comm=False))
    on_cpu = given.devices[0].model_copy(update={"device_kind": "cpu"})
    said = verdict(given.model_copy(update={"devices": [on_cpu]}))
    assert "overlap" not in text(said).lower()
    assert said.command == "bash slurm.sh -e 2 -- --micro-batch-size 4 --ds-no-overlap"


def test_waiting_for_one_rank_is_named_with_the_rank() -> None:
    collective = Collective(kind="all_reduce", count=1, ranks=2, duration_ns=10, mean_ns=5, waiting_ns=9, transfer_ns=1)
    straggler = Straggler(rank=3, last_arrivals=9, collectives=10, mean_lateness_ns=5, evidence="…")
    said = verdict(summary(exposed=40, collectives=[collective], stragglers=[straggler], **run(1)))
    assert "90.0 % of it waiting for the last rank" in text(said)
    assert "rank 3" in text(said)
    assert said.command is None  # no flag makes a slow node fast


def test_waiting_is_a_share_of_all_communication_in_the_answer_as_in_comparisons() -> None:
    reduced = Collective(kind="all_reduce", count=1, ranks=2, duration_ns=10, mean_ns=5, waiting_ns=9)
    moved = Collective(kind="send", count=1, ranks=2, duration_ns=5, mean_ns=5)
    given = summary(exposed=40, collectives=[reduced, moved])
    assert waiting_share(given) == pytest.approx(0.6)
    assert "60.0 % of it waiting" in text(verdict(given))
    mostly_moved = summary(exposed=40, collectives=[reduced, moved.model_copy(update={"duration_ns": 80})])
    assert waiting_share(mostly_moved) == pytest.approx(0.1)
    assert "of it waiting" not in text(verdict(mostly_moved))


def test_someone_elses_trace_gets_advice_and_no_command() -> None:
    said = verdict(summary(idle={"launch-bound": 40}))
    assert said.command is None
    assert "torch.compile" in text(said)


def test_a_run_with_nothing_avoidable_gets_no_advice() -> None:
    said = verdict(summary(compute=99, idle={"launch-bound": 1}))
    assert "No part that could be avoided is above" in text(said)
    assert said.command is None


def test_an_unusable_recording_is_named_before_any_number() -> None:
    finding = Problem(severity=RecordingVerdict.UNUSABLE, what="events are missing", evidence="7 of 9")
    said = verdict(summary(quality=Quality(verdict=RecordingVerdict.UNUSABLE, problems=[finding])))
    assert said.first[0] == "Do not build on these numbers: events are missing (7 of 9)."


def test_without_a_trace_the_share_of_loading_belongs_to_the_step_that_is_shown() -> None:
    """A mean over all steps counts the first, slow ones; the sentence before has the slowest rank's median step."""
    slow = RankTraining(rank=0, median_step_ns=60 * MS, median_data_ns=3 * MS, data_fraction=0.3)
    fast = RankTraining(rank=1, median_step_ns=50 * MS, median_data_ns=20 * MS, data_fraction=0.4)
    said = verdict(Summary(training=[slow, fast]))
    step, (largest,) = said.further[1], said.sentences
    assert "A step takes 60.0 ms" in step
    assert "3.00 ms loading data" in step
    assert "waiting for data: 5.0 % of the time" in largest


def test_a_run_without_a_trace_is_answered_from_its_metrics() -> None:
    training = RankTraining(rank=0, median_step_ns=10 * MS, median_data_ns=4 * MS, data_fraction=0.4)
    said = verdict(Summary(training=[training]))
    assert said.further[1] == "A step takes 10.0 ms (median) by the training's own clock: 4.00 ms loading data."
    assert "waiting for data: 40.0 %" in text(said)


def test_a_period_found_by_periodicity_is_not_called_a_step() -> None:
    steps = Steps(source="periodicity of flash_fwd_kernel", counted=30, duration=equal(30, MS))
    said = verdict(summary(steps=steps, idle={"data loading": 40}))
    assert said.further[1].startswith(
        "A period takes 1.00 ms (median; the steps are not marked, and a period of a kernel may be a layer): "
    )
    assert "40.0 % of the time, about 400 µs a period." in said.sentences[0]
    whole = render(summary(steps=steps))
    assert "Periods, since the steps are not marked: periodicity of flash_fwd_kernel, 30 counted" in whole


def test_nothing_recorded_is_no_answer() -> None:
    assert verdict(Summary()).sentences == ["The recording does not show where the time went."]


def test_pageable_copies_get_the_advice_to_pin() -> None:
    copy = Copy(direction="copy H2D", memory="pageable", count=1, bytes=MS, duration_ns=MS, exposed_ns=MS)
    given = summary(copying=40, copies=[copy])
    (found,) = [found for found in given.findings if found.cause == "copies"]
    assert "pin_memory=True" in reason_of(given, found).changes[0].text
    assert found.share == pytest.approx(0.4)


def test_the_terminal_shows_the_answer_before_the_recordings_quality() -> None:
    whole = render(summary(idle={"data loading": 40}, **run(1, "--slow-dataloading", slow_dataloading=True)))
    places = [whole.index(part) for part in ("waiting for data", "bash slurm.sh -e 1", "A step takes", "Recording: ")]
    assert places == sorted(places)


@pytest.mark.parametrize("direction", ["copy D2H", "copy H2D"])
def test_the_few_bytes_of_an_item_are_no_reason_to_pin(direction: str) -> None:
    sizes: dict[str, Any] = {"count": 59, "bytes": 472, "duration_ns": 1000, "small_count": 59, "small_ns": 1000}
    copy = Copy(direction=direction, memory="pageable", exposed_ns=1000, **sizes)
    given = summary(copying=40, copies=[copy])
    (found,) = [found for found in given.findings if found.cause == "copies"]
    assert "pin_memory" not in reason_of(given, found).changes[0].text


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        (["lesson", "1a"], "bash slurm.sh -e 1 -- --micro-batch-size 4"),
        (["lesson", "1a", "--site", "leonardo"], "bash slurm.sh -e 1 --site leonardo -- --micro-batch-size 4"),
        (["-e", "1", "--site=my site.yaml", "-a", "me"],
         "bash slurm.sh -e 1 '--site=my site.yaml' -a me -- --micro-batch-size 4"),
        (["run", "last"], "bash slurm.sh -e 1 --site leonardo -a me -- --micro-batch-size 4"),
    ],
)  # fmt: skip
def test_whatever_was_typed_the_next_command_launches(typed: list[str], command: str) -> None:
    given = run(1)
    given["run"] = {"command": ["slurm.sh", *typed], "site": {"name": "leonardo", "account": "me"}}
    assert verdict(summary(idle={"launch-bound": 40}, **given)).command == command


def test_the_next_command_is_the_same_run_at_a_site_with_defaults_of_its_own() -> None:
    usual = {"mixed_precision": True, "active_steps": 2, "skip_steps": 1}
    given = run(1, slow_dataloading=True)  # asked in fp32 with 20 profiled steps
    given["run"]["site"] = {"name": "ours", "defaults": usual}
    assert changed_command(summary(**given), {"slow_dataloading": False}) == (
        "bash slurm.sh -e 1 -- --no-mixed-precision --skip-steps 10 --active-steps 20"
    )
    given["run"]["site"] = {"name": "ours", "defaults": {"slow_dataloading": True}}
    assert changed_command(summary(**given), {"slow_dataloading": False}) is None, "no flag says that there"


def test_a_suggestion_that_breaks_a_rule_is_not_made() -> None:
    asked = {"tp": 4, "global_batch_size": 6, "micro_batch_size": 6, "nodes": 1, "gpus_per_node": 4}
    said = verdict(summary(exposed=40, **run(3, **asked)))
    assert said.command is None
    assert "tensor-parallel" not in text(said)


def test_buckets_of_heavy_communication_are_large() -> None:
    said = verdict(summary(exposed=40, **run(2, heavy_comm=True, mixed_precision=True)))
    assert "large on purpose: messages are few and late" in text(said)


def test_zero_never_gets_the_advice_to_accumulate() -> None:
    """ZeRO reduces in every micro-batch: accumulation would change nothing."""
    given = run(2, nodes=2)
    given["run"]["resolved"] = {"exercise": 2, "nodes": 2, "gpus_per_node": 4, "zero_stage": 3, "hpz_partition": 8}
    said = verdict(summary(exposed=40, **given))
    assert "in every micro-batch, also with gradient accumulation" in text(said)
    assert said.command == "bash slurm.sh -e 2 -n 2 -- --ds-hpz-partition 4"
    given["run"]["resolved"]["hpz_partition"] = 4
    assert verdict(summary(exposed=40, **given)).command == "bash slurm.sh -e 2 -n 2 -- --micro-batch-size 4"


def test_stage_2_is_advised_where_it_fits_the_memory_that_was_measured() -> None:
    given = run(2)
    given["run"]["resolved"] = {"exercise": 2, "nodes": 1, "gpus_per_node": 4, "zero_stage": 3, "hpz_partition": 4}
    facts: dict[str, Any] = {
        "world_size": 4,
        "parameters": 10**9,
        "peak_memory_bytes": 20 * 10**9,
        "micro_batch_size": 2,
    }
    given["training"] = [RankTraining(rank=0, **facts)]
    for total, advice in ((40 * 10**9, "--ds-stage2"), (22 * 10**9, "--micro-batch-size 4")):
        seen = MonitorDevice(node="n", device=0, name="A", samples=1, duration_ns=1, memory_total_bytes=total)
        said = verdict(summary(exposed=40, monitor=[seen], **given))
        assert said.command == f"bash slurm.sh -e 2 -- {advice}"


CAUSES: dict[str, dict[str, Any]] = {
    "data": {"idle": {"data loading": 40}},
    "launch": {"idle": {"launch-bound": 40}},
    "communication": {"exposed": 40},
    "precision": {
        "compute": 100,
        "kinds": [FP32],
    },
}  # fmt: skip
EXPERIMENTS = [
    DDP(), DDP(slow_dataloading=True, micro_batch_size=2), DDP(nodes=2, gradient_accumulation_steps=4),
    DeepSpeed(overlap_comm=False), DeepSpeed(heavy_comm=True, mixed_precision=True),
    DeepSpeed(nodes=2, hpz_partition=8), DeepSpeed(zero_stage=2), DeepSpeed(zero_stage=1),
    DeepSpeed(zero_stage=2, gradient_accumulation_steps=16), Megatron(tp=4),
    Megatron(nodes=2, tp=4, pp=2, mixed_precision=False),
    Megatron(nodes=2, tp=2, pp=4, global_batch_size=64, micro_batch_size=2),
]  # fmt: skip


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: " ".join(command_of(e)))
@pytest.mark.parametrize("cause", [*CAUSES, "bubble"])
def test_every_suggested_command_passes_a_dry_run_and_asks_for_another_run(
    experiment: Experiment, cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site = load_site("leonardo")
    machine = Machine(gpus=0, cores=8, has_nsys=True, python="python3", runs_dir="/runs")
    job = resolve(experiment, site, machine)
    resolved = job.experiment.model_dump(mode="json")
    batch = resolved["micro_batch_size"]
    more: dict[str, Any] = dict(CAUSES.get(cause, {}))
    if cause == "bubble":
        more["pipeline"] = pipeline(0.25)
    given = summary(
        **more,
        run={"command": ["slurm.sh", "lesson", "1a", "--site", "leonardo", "-a", "me"], "resolved": resolved},
        experiment=experiment.model_dump(mode="json"),
        world_size=job.experiment.world_size,
        training=[RankTraining(rank=0, micro_batch_size=batch, gradient_accumulation_steps=1)],
    )
    for found in given.findings:
        for change in reason_of(given, found).changes:
            if change.fields is None or (text := changed_command(given, change.fields)) is None:
                continue
            words = shlex.split(text)
            assert words[:2] == ["bash", "slurm.sh"]
            assert launch_argv([*words[2:], "--dry-run", "--json"]) == 0, text
            asked = json.loads(capsys.readouterr().out)["experiment"]
            assert asked != resolved, text


def test_a_long_command_can_be_pasted_from_the_terminal() -> None:
    shown = in_lines("bash slurm.sh -e 1 --data '/a folder/with spaces.json' " + "--sbatch x=y " * 12, 60)
    assert all(len(line) <= 62 for line in shown)
    assert all(line.endswith(" \\") for line in shown[:-1])
    assert any("'/a folder/with spaces.json'" in line for line in shown)


def test_without_a_recording_what_no_phase_has_is_said_and_not_explained() -> None:
    rank = RankTraining(rank=0, median_step_ns=100 * MS, median_forward_ns=30 * MS, median_backward_ns=20 * MS)
    said = text(verdict(summary(training=[rank], devices=[])))
    assert "50.0 ms of 100 ms a step (50.0 %) are outside of loading data" in said
    assert "--profiler torch" in said


def test_without_a_recording_the_lines_outside_of_all_phases_are_named() -> None:
    rank = RankTraining(rank=1, median_step_ns=100 * MS, median_forward_ns=30 * MS, median_backward_ns=20 * MS)
    line = LineShare(where=CodeLocation(file="train.py", line=5, function="<module>"), share=0.97)
    times = JobTime(elapsed_ns=10**9, useful_share=0.5, lines_by_rank={1: [line]})
    said = text(verdict(summary(training=[rank], devices=[], job_time=times)))
    assert "(50.0 %) are outside of loading data, forward, backward and optimizer: 97 % of them at train.py:5." in said
    assert "recording" not in said
