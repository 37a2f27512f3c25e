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
    JobTimePart,
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
from harness.cli.app import execute
from harness.experiment.exercises import DDP, DeepSpeed, Experiment, Megatron
from harness.experiment.parse import command_of
from harness.explain.answer import verdict
from harness.explain.commands import changed_command, in_lines
from harness.explain.findings import reason_of
from harness.launch.job import Machine, resolve
from harness.report.tables.terminal import render
from harness.site.site import load_site
from tests.report.given_summary import FP32, MS, equal, of_devices, run, summary, text

PERIODS = Steps(source="periodicity of flash_fwd_kernel", counted=30, duration=equal(30, MS))
MORE_MICRO_BATCHES = "-e 3 -- --tp 2 --pp 2 --global-batch-size 16"


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


def waiting(duration_ns: int) -> list[Collective]:
    """An all-reduce of 10 ns, 9 of them waiting, and a send that nobody waits in."""
    reduced = Collective(kind="all_reduce", count=1, ranks=2, duration_ns=10, mean_ns=5, waiting_ns=9)
    return [reduced, Collective(kind="send", count=1, ranks=2, duration_ns=duration_ns, mean_ns=5)]


def copied(direction: str, size: int, **small: Any) -> dict[str, Any]:
    row = Copy(direction=direction, memory="pageable", count=59, bytes=size, duration_ns=1000, exposed_ns=1000, **small)
    return {"copying": 40, "copies": [row]}


def own_clock(**phases_ms: int) -> RankTraining:
    """A rank without a recording, whose step takes 100 ms."""
    given: dict[str, Any] = {f"median_{name}_ns": ms * MS for name, ms in phases_ms.items()}
    return RankTraining(rank=1, median_step_ns=100 * MS, **given)


def resolved(exercise: int, fields: dict[str, Any], *flags: str, **asked: Any) -> dict[str, Any]:
    given = run(exercise, *flags, **asked)
    given["run"]["resolved"] = {"exercise": exercise, "gpus_per_node": 4} | fields
    return given


CPU, V100, A100 = {"device_kind": "cpu"}, {"name": "Tesla V100-SXM2-32GB"}, {"name": "NVIDIA A100-SXM4-40GB"}
WARM_UP: dict[str, Any] = {"source": "made", "counted": 10, "duration": equal(10, 10 * MS), "excluded_warmup": 1}
LAST = Straggler(rank=3, last_arrivals=9, collectives=10, mean_lateness_ns=5, evidence="…")
OUTSIDE = "50 of 100 ms a step (50.0 %) are outside of loading data, forward, backward and optimizer"
LINE = LineShare(where=CodeLocation(file="train.py", line=5, function="<module>"), share=0.97)
STUCK = JobTime(elapsed_ns=2, useful_share=0.5, parts=[JobTimePart(part="stuck", duration_ns=1, share=0.5)])
UNUSABLE = Problem(severity=RecordingVerdict.UNUSABLE, what="events are missing", evidence="7 of 9")
TP_4 = {"tp": 4, "global_batch_size": 6, "micro_batch_size": 6, "nodes": 1, "gpus_per_node": 4}
ZERO_3 = {"nodes": 1, "zero_stage": 3, "hpz_partition": 4}
ON_TWO_NODES = {"nodes": 2, "zero_stage": 3, "hpz_partition": 8}
Answer = tuple[Summary, tuple[str, ...], tuple[str, ...], str | None]  # given, said, not said, the command
ANSWERS: dict[str, Answer] = {
    "the shares and the step": (
        summary(compute=60, exposed=25, copying=5, idle={"other": 10}),
        ("A step takes 10.0 ms on average: 60.0 % computing, 25.0 % exposed communication, 5.0 % copying, 10.0 % "
         "idle.",),
        ("warm-up",), None,
    ),
    "the largest part with its time per step": (
        summary(idle={"data loading": 30, "launch-bound": 10}),
        ("The largest avoidable part is waiting for data: 30.0 % of the time, about 3.00 ms a step",), (), None,
    ),
    "a V100 has no bf16": (of_devices(summary(compute=100, kinds=[FP32]), **V100), ("fp16",), ("bf16",), None),
    "an A100 has bf16": (of_devices(summary(compute=100, kinds=[FP32]), **A100), ("bf16",), ("fp16",), None),
    "an unknown device has bf16": (summary(compute=100, kinds=[FP32]), ("bf16",), ("fp16",), None),
    "steps left out as warm-up": (
        summary(compute=99, idle={"other": 1}, steps=Steps(**WARM_UP)),
        ("The first step is not counted (warm-up), because it takes more than 2 times as long as later steps",),
        (), None,
    ),
    "periods left out as warm-up": (
        summary(compute=99, idle={"other": 1}, steps=Steps(**WARM_UP | {"source": "periodicity of k"})),
        ("The first period is not counted", "as long as later periods"), (), None,
    ),
    "a schedule that leaves a pipeline empty": (
        pipelined(0.25), ("the pipeline's bubble: 25.0 %",), ("fewer layers",), MORE_MICRO_BATCHES,
    ),
    "equal stages, a large bubble": (pipelined(0.4, busy=(70, 70)), (), ("fewer layers",), MORE_MICRO_BATCHES),
    "the slow stage of an unequal pipeline": (
        pipelined(0.4, busy=(40, 80)),
        ("the rest is waiting for stage 1, which works 80.0 % of that time", "give stage 1 fewer layers"), (), None,
    ),
    "a bubble mostly of the schedule": (  # two stages and 8 micro-batches on two cores: 19.5 % instead of 11.1 %
        pipelined(0.36, busy=(56, 72)),
        ("the rest is waiting for stage 1, which works 72.0 % of that time",), (), MORE_MICRO_BATCHES,
    ),
    "communication inside the bubble is bubble": (  # a stage waits for the other in 40 of the 45 ms
        pipelined(0.375, exposed=45, busy=(60, 60), communication=40),
        ("the pipeline's bubble: 40.0 % of the time", "40.0 % of the time, is shown as communication",
         "exposed communication, without the pipeline's waiting: 5.0 % of the time"), (), MORE_MICRO_BATCHES,
    ),
    "a CPU cannot show overlap": (
        of_devices(summary(exposed=40, **run(2, "--", "--ds-no-overlap", overlap_comm=False)), **CPU),
        (), ("overlap",), "-e 2 -- --micro-batch-size 4 --ds-no-overlap",
    ),
    "waiting for one rank": (
        summary(exposed=40, collectives=waiting(0)[:1], stragglers=[LAST], **run(1)),
        ("90.0 % of it waiting for the last rank", "rank 3"), (), None,  # no flag makes a slow node fast
    ),
    "waiting is a share of all communication": (
        summary(exposed=40, collectives=waiting(5)), ("60.0 % of it waiting",), (), None,
    ),
    "communication that mostly moves": (summary(exposed=40, collectives=waiting(80)), (), ("of it waiting",), None),
    "someone else's trace": (summary(idle={"launch-bound": 40}), ("torch.compile",), (), None),
    "nothing avoidable": (
        summary(compute=99, idle={"launch-bound": 1}), ("No part that could be avoided is above",), (), None,
    ),
    "an unusable recording": (
        summary(quality=Quality(verdict=RecordingVerdict.UNUSABLE, problems=[UNUSABLE])),
        ("Do not build on these numbers: events are missing (7 of 9).",), (), None,
    ),
    # A mean over all steps counts the first, slow ones; the sentence has the slowest rank's median step.
    "loading is a share of the step that is shown": (
        Summary(training=[
            RankTraining(rank=0, median_step_ns=60 * MS, median_data_ns=3 * MS, data_fraction=0.3),
            RankTraining(rank=1, median_step_ns=50 * MS, median_data_ns=20 * MS, data_fraction=0.4),
        ]),
        ("A step takes 60.0 ms (median) by the training's own clock: 3.00 ms loading data.",
         "waiting for data: 5.0 % of the time"), (), None,
    ),
    "a period is no step": (
        summary(steps=PERIODS, idle={"data loading": 40}),
        ("A period takes 1.00 ms (median; the steps are not marked, and a period of a kernel may be a layer): ",
         "40.0 % of the time, about 400 µs a period."), (), None,
    ),
    "nothing recorded": (Summary(), ("Nothing that was recorded shows where the time of a step went.",), (), None),
    "pageable copies": (summary(**copied("copy H2D", MS)), ("pin_memory=True",), (), None),
    **{
        f"the few bytes of an item, {direction}": (
            summary(**copied(direction, 472, small_count=59, small_ns=1000)), (), ("pin_memory",), None,
        )
        for direction in ("copy D2H", "copy H2D")
    },
    "a rule that a suggestion would break": (summary(exposed=40, **run(3, **TP_4)), (), ("tensor-parallel",), None),
    "heavy communication has large buckets": (
        summary(exposed=40, **run(2, heavy_comm=True, mixed_precision=True)),
        ("large on purpose: messages are few and late",), (),
        "-e 2 -- --mixed-precision",
    ),
    "ZeRO reduces in every micro-batch": (  # accumulation would change nothing
        summary(exposed=40, **resolved(2, ON_TWO_NODES, nodes=2)),
        ("in every micro-batch, also with gradient accumulation",), (), "-e 2 -n 2 -- --ds-hpz-partition 4",
    ),
    "parameters that are gathered inside a node": (
        summary(exposed=40, **resolved(2, ON_TWO_NODES | {"hpz_partition": 4}, nodes=2)),
        (), (), "-e 2 -n 2 -- --micro-batch-size 4",
    ),
    "what no phase has is not explained": (
        summary(training=[own_clock(forward=30, backward=20)], devices=[]), (OUTSIDE, "--profiler torch"), (), None,
    ),
    "a run that was stuck to its end": (
        summary(training=[own_clock(forward=60, backward=30, data=10)], devices=[], job_time=STUCK),
        ("A step takes 100 ms",), ("avoid", "add --profiler"), "status RUN",
    ),
    "a run that was stuck, recorded before": (
        summary(compute=50, idle={"data loading": 50}, job_time=STUCK), ("50.0 % computing",), ("avoid",), "status RUN",
    ),
    "a run that died before a step": (
        summary(training=[own_clock()], devices=[]), ("Nothing that was recorded shows",), ("outside", "clock"), None,
    ),
    "nothing stands out": (
        summary(training=[own_clock(forward=51, backward=40)], devices=[]),
        ("Nothing stands out: forward 51, backward 40 of 100 ms.", "--profiler torch"), ("outside",), None,
    ),
    "few steps that are far longer": (
        summary(training=[own_clock(forward=51, backward=40).model_copy(update={"steps_total": 10})], devices=[],
                job_time=JobTime(elapsed_ns=10**11, useful_share=0.7,
                                 parts=[JobTimePart(part="steps", duration_ns=70 * 10**9, share=0.7)])),
        ("10 steps take 1 min 10 s, but the median step 100 ms: a few steps",), ("stands out",), None,
    ),
    "the lines outside of all phases": (
        summary(training=[own_clock(forward=30, backward=20)], devices=[],
                job_time=JobTime(elapsed_ns=10**9, useful_share=0.5, lines_by_rank={1: [LINE]})),
        (f"{OUTSIDE}: 97 % of them at train.py:5.",), ("samples",), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_answered(name: str) -> None:
    given, said, unsaid, command = ANSWERS[name]
    found = verdict(given)
    whole = text(found)
    assert [words for words in said if words not in whole] == [], whole
    assert [words for words in unsaid if words in whole.lower()] == []
    assert found.command == (command and f"bash slurm.sh {command}")


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
    assert ("35.0 ms between the steps" in render(given).split("Steps: ")[1]) == ("inside its mark" in said)


def test_a_bubble_is_weighed_in_the_whole_step_and_explained_in_its_schedule() -> None:
    given = summary(pipeline=pipeline(0.25, window_ns=400))
    (found,) = [found for found in given.findings if found.cause == "bubble"]
    assert found.share == pytest.approx((30 + 20) / 800)
    assert reason_of(given, found).why.startswith("It is 25.0 % of the schedule: 2 stages share 4 micro-batches")
    assert waiting_share(summary(collectives=waiting(5))) == pytest.approx(0.6), "as the answer has it"


def test_the_terminal_shows_the_answer_before_the_recordings_quality() -> None:
    whole = render(summary(idle={"data loading": 40}, **run(1, "--slow-dataloading", slow_dataloading=True)))
    places = [whole.index(part) for part in ("waiting for data", "bash slurm.sh -e 1", "A step takes", "Recording: ")]
    assert places == sorted(places)
    assert "Periods, since the steps are not marked: periodicity of flash_fwd_kernel, 30 counted" in render(
        summary(steps=PERIODS)
    )


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


@pytest.mark.parametrize(
    ("usual", "command"),
    [
        (
            {"mixed_precision": True, "active_steps": 2, "skip_steps": 1},  # asked in fp32 with 20 profiled steps
            "bash slurm.sh -e 1 -- --no-mixed-precision --skip-steps 10 --active-steps 20",
        ),
        ({"slow_dataloading": True}, None),  # no flag says the opposite there
    ],
)
def test_the_next_command_is_the_same_run_at_a_site_with_defaults_of_its_own(
    usual: dict[str, Any], command: str | None
) -> None:
    given = run(1, slow_dataloading=True)
    given["run"]["site"] = {"name": "ours", "defaults": usual}
    assert changed_command(summary(**given), {"slow_dataloading": False}) == command


@pytest.mark.parametrize(("total_gb", "advice"), [(40, "--ds-stage2"), (22, "--micro-batch-size 4")])
def test_stage_2_is_advised_where_it_fits_the_memory_that_was_measured(total_gb: int, advice: str) -> None:
    facts: dict[str, Any] = {
        "world_size": 4,
        "parameters": 10**9,
        "peak_memory_bytes": 20 * 10**9,
        "micro_batch_size": 2,
    }
    seen = MonitorDevice(node="n", device=0, name="A", samples=1, duration_ns=1, memory_total_bytes=total_gb * 10**9)
    given = resolved(2, ZERO_3) | {"training": [RankTraining(rank=0, **facts)], "monitor": [seen]}
    assert verdict(summary(exposed=40, **given)).command == f"bash slurm.sh -e 2 -- {advice}"


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
            assert execute([*words[2:], "--dry-run", "--json"]) == 0, text
            asked = json.loads(capsys.readouterr().out)["experiment"]
            assert asked != resolved, text


def test_a_long_command_can_be_pasted_from_the_terminal() -> None:
    shown = in_lines("bash slurm.sh -e 1 --data '/a folder/with spaces.json' " + "--sbatch x=y " * 12, 60)
    assert all(len(line) <= 62 for line in shown)
    assert all(line.endswith(" \\") for line in shown[:-1])
    assert any("'/a folder/with spaces.json'" in line for line in shown)
