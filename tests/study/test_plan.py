"""`slurm.sh … --plan`: the verdict, the nearest setting that fits, where each number is from, and what is not known;
and the plan that a run keeps, beside what was measured."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Efficiency, RankTraining, Summary
from harness.cli.main import main
from harness.cli.plan.plan import short_form, show_plan
from harness.experiment.exercises import DDP
from harness.launch.submit import PreparedLaunch, prepare
from harness.measure.run_contents import predicted_and_measured, read_plan
from harness.plan.numbers import plan_document, plan_text
from harness.plan.plan import LaunchPlan, MemoryPlan, StepPlan, plan_of
from harness.report.tables.catalogue import page_tables
from harness.run import Run
from harness.run.record import Status
from harness.site.site import load_site
from harness.theory.flops import USUAL_MFU
from tests.study.kit import asked_at, page_of

LEONARDO = ("--site", "leonardo")
LARGE = ("-e", "1", *LEONARDO, "--", "--model", "mistral-7b")


@pytest.fixture(autouse=True)
def no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No run of this machine is looked at."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    return tmp_path


def prepared(*words: str) -> PreparedLaunch:
    return prepare(*asked_at(*words))


def planned(*words: str) -> LaunchPlan:
    return plan_of(prepared(*words))


def numbers(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = plan_document(planned(*words))["numbers"]
    return found


def memory_of(*words: str) -> MemoryPlan:
    found = planned(*words).memory
    assert found is not None
    return found


def step_of(*words: str) -> StepPlan:
    found = planned(*words).step
    assert found is not None
    return found


@pytest.mark.parametrize(
    "words", [("-e", "1"), ("-e", "2", "-n", "2"), ("-e", "3", "-n", "2", "--pp", "2"), ("-e", "0")]
)
def test_every_number_has_a_unit_and_is_finite(words: tuple[str, ...]) -> None:
    assert all(row["unit"] and row["value"] >= 0 for row in numbers(*LEONARDO, *words).values())


def test_the_parts_of_the_memory_add_up_to_it() -> None:
    found = numbers("-e", "2", "-n", "2", *LEONARDO)
    parts = ("weights", "gradients", "optimizer", "activations", "buffers", "framework")
    assert sum(found[f"{part}_bytes"]["value"] for part in parts) == found["planned_memory_bytes"]["value"]
    assert all(found[f"{part}_bytes"]["source"] for part in parts)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (LARGE, "bash slurm.sh -e "),
        (
            ("-e", "1", *LEONARDO, "--micro-batch-size", "64"),
            "bash slurm.sh -e 1 --site leonardo -- --micro-batch-size 16",
        ),
    ],
)
def test_what_does_not_fit_comes_with_the_least_change_that_does(words: tuple[str, ...], nearest: str) -> None:
    found, memory = planned(*words), memory_of(*words)
    assert memory.verdict == "does not fit" and memory.nearest is not None
    assert memory.nearest.command.startswith(nearest) and memory.nearest.command in found.warnings[0]
    better = memory_of(*shlex.split(memory.nearest.command)[2:])
    assert better.verdict == memory.nearest.verdict == "fits"


@pytest.mark.parametrize(
    ("words", "micro_batch", "said"),
    [
        (("-e", "2"), 2, "micro-batch 2; 4, as on the slides, would need 74.4 of 68.7 GB"),
        (("-e", "2", "--", "--mixed-precision"), 4, ""),
        (("-e", "2", "--", "--micro-batch-size", "1"), 1, ""),
        (("-e", "3", "--", "--tp", "4"), 2, "micro-batch 2; 4, as on the slides, would need 68.9 of 68.7 GB"),
        (
            ("-e", "3", "-n", "2", "--", "--tp", "4", "--pp", "2"),
            2,
            "would fit (51.5 of 68.7 GB): --micro-batch-size 4",
        ),
    ],
)
def test_a_micro_batch_smaller_than_on_the_slides_says_what_that_would_need(
    words: tuple[str, ...], micro_batch: int, said: str
) -> None:
    found = planned(*LEONARDO, *words)
    assert found.workload is not None and found.workload.micro_batch == micro_batch
    assert found.memory is not None and (said in found.memory.usual if said else not found.memory.usual)
    assert (found.memory.usual in short_form(found)[1]) if said else len(short_form(found)) <= 4


SLIDE = ("--", "--mixed-precision", "--gradient-accumulation-steps", "16")


@pytest.mark.parametrize(
    ("words", "gigabytes", "said"),
    [
        (("-e", "2", "--", "--micro-batch-size", "4"), 74.4, "4 would need 74.4"),
        (("-e", "2"), 61.9, "2 need 61.9 of 68.7 GB"),
        (("-e", "2", "-n", "2", "--", "--ds-no-overlap", "--micro-batch-size", "4"), 56.3, "on two nodes 56.3"),
        (("-e", "2", *SLIDE, "--ds-stage2"), 55.7, "needs 55.7 GB with stage 2"),
        (("-e", "2", *SLIDE), 50.3, "50.3 with stage 3"),
        (("-e", "2", *SLIDE, "--ds-hpz-partition", "1"), 46.7, "needs 46.7 GB"),
        (("-e", "2", *SLIDE, "--ds-hpz-partition", "1"), 55.7 - 9.0, "saves 9.0 GB"),
        (("-e", "3", "--", "--tp", "4", "--micro-batch-size", "4"), 68.9, "68.9 of 68.7 GB"),
        (("-e", "3", "-n", "2", "--", "--tp", "4", "--pp", "2", "--micro-batch-size", "4"), 51.5, "two nodes 51.5"),
    ],
)
def test_the_pages_of_the_exercises_say_what_the_plan_does(words: tuple[str, ...], gigabytes: float, said: str) -> None:
    assert said in " ".join(page_of(words[1]).split())
    assert memory_of(*LEONARDO, *words).peak.highest.total / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_the_bubble_of_3a_is_what_its_page_says() -> None:
    page = " ".join(page_of("3").split())
    words = ("-e", "3", "-n", "2", *LEONARDO, "--", "--pp", "2", "--tp", "4")
    found, few = numbers(*words), numbers(*words, "--global-batch-size", "16")
    bubble, step = found["bubble"]["value"], found["step_ns"]
    low, high = step["low"] / 1e9, step["high"] / 1e9
    assert f"{100 * bubble:.1f} % of an iteration" in page and f"it is {100 * few['bubble']['value']:.0f} %" in page
    assert f"{bubble * low:.1f} to {bubble * high:.1f} s of {low:.0f} to {high:.0f} s" in page


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-e", "1", "--site", "slurm"), "does not say what GPUs it has (gpus.name)"),
        (("-e", "1", "--site", "jupiter", "--model", "mistral-7b", "--unified-memory"), "in the host's memory"),
    ],
)
def test_without_a_known_memory_there_are_numbers_and_no_verdict(words: tuple[str, ...], why: str) -> None:
    memory = memory_of(*words)
    assert memory.verdict == "not known" and why in memory.capacity.source and planned(*words).warnings == []


def test_without_a_known_gpu_the_speed_is_not_known() -> None:
    assert "gpus.name" in str(step_of("-e", "1", "--site", "slurm").speed)


def ends(number: dict[str, Any]) -> list[float]:
    return [number["low"], number["high"]]


def test_the_speed_follows_from_the_time_of_a_step_and_is_less_where_work_is_repeated_or_waits() -> None:
    mixed = ("-e", "1", *LEONARDO, "--", "--mixed-precision")
    found, again = numbers(*mixed), numbers(*mixed, "--activation-checkpointing")
    tokens, step, speed = (found[name] for name in ("tokens_per_step", "step_ns", "tokens_per_s"))
    assert speed["low"] == pytest.approx(tokens["value"] * 1e9 / step["high"], rel=0.01)
    assert speed["high"] == pytest.approx(tokens["value"] * 1e9 / step["low"], rel=0.01)
    assert ends(again["mfu"]) == pytest.approx([end * 3 / 4 for end in ends(found["mfu"])], rel=0.01)
    staged, whole = numbers("-e", "3", *LEONARDO, "--", "--pp", "4"), numbers("-e", "3", *LEONARDO)
    assert ends(whole["mfu"]) == pytest.approx([USUAL_MFU["bf16"].low, USUAL_MFU["bf16"].high])
    working = 1 - staged["bubble"]["value"]
    assert ends(staged["mfu"]) == pytest.approx([end * working for end in ends(whole["mfu"])], rel=0.01)


def test_faster_links_shorten_the_messages_and_never_lengthen_a_step() -> None:
    slow = load_site("leonardo")
    fast = slow.model_copy(update={"network": slow.network.model_copy(update={"link_inter_gbps": 800.0})})
    experiment = prepared("-e", "2", "-n", "2", *LEONARDO).experiment
    one, other = (plan_of(prepare(experiment, site)).step for site in (slow, fast))
    assert one is not None and other is not None and one.exposed and other.exposed and one.step_ns and other.step_ns
    assert other.exposed.total_ns < one.exposed.total_ns
    assert other.exposed.least_ns <= one.exposed.least_ns <= one.exposed.total_ns
    assert other.step_ns[0] <= one.step_ns[0]


def test_nothing_hides_without_overlap() -> None:
    plain, none = (step_of("-e", "2", "-n", "2", *LEONARDO, *more).exposed for more in ((), ("--ds-no-overlap",)))
    assert plain is not None and plain.least_ns < plain.total_ns
    assert none is not None and none.least_ns == none.total_ns


def test_the_worst_case_is_the_time_limit_and_a_run_that_cannot_end_in_it_is_warned_of() -> None:
    cost = planned("-e", "1", *LEONARDO, "--time", "00:01:00").cost
    assert cost.most_gpu_hours == pytest.approx(4 / 60)
    assert cost.gpu_hours() == (cost.most_gpu_hours, cost.most_gpu_hours)
    assert any("time limit" in warning for warning in planned("-e", "1", *LEONARDO, "--steps", "100000").warnings)


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (
            ("-e", "2", "-n", "2", "--mixed-precision"),
            ("14 + 14 + 84 = 112 GB", "2·N/8", "PaLM, 2022", "Rajbhandari", "between nodes", "GPU hours "),
        ),
        (
            ("-e", "1"),
            (
                "backward, 4 data-parallel ranks",
                " messages",
                "global batch",
                "16 samples",
                "4 ranks × 1 accumulation step × micro-batch 4",
            ),
        ),
    ],
)
def test_the_page_says_each_formula_and_source(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    assert main([*words, *LEONARDO, "--plan"]) == 0
    page = capsys.readouterr().out
    assert [text for text in texts if text not in page] == []


def test_json_has_every_number_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LARGE, "--plan", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "does not fit" and found["fits_with"].startswith("bash slurm.sh -e")
    assert found["numbers"]["peak_memory_bytes"]["unit"] == "bytes"


@pytest.mark.parametrize("exercise", [0, 1, 2, 3])
@pytest.mark.parametrize("site", ["leonardo", "slurm", "local"])
def test_the_short_form_is_six_lines_at_most_and_names_the_global_batch(exercise: int, site: str) -> None:
    found = planned("-e", str(exercise), "--site", site)
    lines = short_form(found)
    accumulates = found.workload is not None and found.workload.micro_batches > 1
    assert len(lines) <= (6 if accumulates else 5)
    assert any("global batch" in line for line in lines) == accumulates
    assert all(line.startswith("plan: " if not number else "      ") for number, line in enumerate(lines))
    assert all("None" not in line for line in lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-e", "3", *LEONARDO, "--", "--nsys2prv"), "by a job of its own, without GPUs"),
        (("-e", "1", *LEONARDO, "--", "--nsys2prv-compress"), "by a job of its own, without GPUs"),
        (("-e", "1", "--site", "local", "--", "--nsys2prv"), "by the same job, for which no time is planned"),
        (("-e", "3", *LEONARDO), ""),
    ],
)
def test_the_plan_says_who_makes_the_paraver_trace(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a cluster a job holds its GPUs to its end."""
    found = planned(*words)
    show_plan(prepared(*words), as_json=False)
    for text in (short_form(found)[-1], capsys.readouterr().out):
        assert ("afterwards the Paraver trace is made" in text) == bool(said) and said in text
    submits = [word for command in found.job.after for word in command.argv if word == "--submit"]
    assert bool(submits) == ("without GPUs" in said)


ACCUMULATE = ("--", "--gradient-accumulation-steps", "16", "--micro-batch-size", "8")


@pytest.mark.parametrize("words", [("-e", "2"), ("-e", "2", "--ds-stage2"), ("-e", "1"), ("-e", "1", "--fsdp")])
def test_every_rank_of_ddp_zero_and_fsdp_has_its_own_samples_in_the_global_batch(words: tuple[str, ...]) -> None:
    found = planned(*words[:2], "-n", "2", *LEONARDO, *ACCUMULATE, *words[2:])
    rows = plan_document(found)["numbers"]
    assert (rows["global_batch"]["value"], rows["global_batch"]["unit"]) == (8 * 16 * 8, "samples")
    assert rows["global_batch_tokens"]["value"] == 1024 * 512
    (line,) = [line for line in short_form(found) if "global batch" in line]
    assert line.endswith("8 ranks × 16 accumulation steps × micro-batch 8 = 1,024 samples (524,288 tokens)")
    if "ds_config.json" in found.job.files:
        config = json.loads(found.job.files["ds_config.json"])
        assert 8 * config["gradient_accumulation_steps"] * config["train_micro_batch_size_per_gpu"] == 1024


@pytest.mark.parametrize(
    ("words", "factors"),
    [
        (("--tp", "4", "--pp", "1"), "2 replicas (8 ranks / (TP 4 · PP 1 · CP 1)) × 16 micro-batches of 2"),
        (("--tp", "4", "--pp", "2"), "1 replica (8 ranks / (TP 4 · PP 2 · CP 1)) × 32 micro-batches of 2"),
        (("--tp", "1", "--cp", "2"), "4 replicas (8 ranks / (TP 1 · PP 1 · CP 2)) × 8 micro-batches of 2"),
    ],
)
def test_megatrons_ranks_share_the_samples_of_a_replica(words: tuple[str, ...], factors: str) -> None:
    size = ("--global-batch-size", "64", "--micro-batch-size", "2")
    rows = numbers("-e", "3", "-n", "2", *LEONARDO, "--", *size, *words)
    assert (rows["global_batch"]["value"], rows["global_batch"]["formula"]) == (64, factors)
    assert rows["global_batch_tokens"]["value"] == rows["tokens_per_step"]["value"] == 64 * 4096


def test_a_plan_takes_the_peak_and_the_memory_of_its_precision() -> None:
    at = ("-e", "1", "--site", "marenostrum5", "--", "--mixed-precision")
    plans = {name: numbers(*at, name) for name in ("fp32", "tf32", "bf16", "fp8")}
    peaks = {name: found["step_ns"]["source"].split(" of ")[1].split()[0] for name, found in plans.items()}
    assert peaks == {"fp32": "67", "tf32": "494.5", "bf16": "989", "fp8": "1979"}
    state = {name: found["weights_bytes"]["value"] for name, found in plans.items()}
    assert len(set(state.values())) == 1  # float32 in all of them
    memory = {name: found["planned_memory_bytes"]["value"] for name, found in plans.items()}
    # bf16's autocast keeps copies of all weights that it multiplies; torchao casts its own when they are needed
    assert memory["fp8"] < memory["bf16"] and memory["tf32"] == memory["fp32"]


# ---- The plan that a run keeps


@pytest.fixture
def run(no_runs: Path) -> Run:
    """The folder of a run that keeps its plan."""
    made = Run(no_runs)
    made.plan.write_text(plan_text(plan_of(prepare(DDP(gpus_per_node=2), load_site("local")))), encoding="utf-8")
    return made


def measured() -> Summary:
    training = [
        RankTraining(rank=rank, tokens=768, samples=4, steps_counted=2, peak_memory_bytes=700_000_000, parameters=1000)
        for rank in range(2)
    ]
    return Summary(world_size=2, training=training, efficiency=Efficiency(tokens_per_s=20_000))


def rows(run: Run, summary: Summary | None = None) -> dict[str, Any]:
    found = predicted_and_measured(summary or measured(), read_plan(run))
    return {row.name: row for row in found}


def test_each_prediction_stands_beside_the_metric_of_its_name(run: Run) -> None:
    found = rows(run)
    assert found["tokens_per_step"].predicted == found["tokens_per_step"].measured == 2 * 2 * 192
    assert found["tokens_per_step"].ratio == 1
    assert found["peak_memory_bytes"].measured == 700_000_000
    assert found["peak_memory_bytes"].formula


def test_what_was_not_measured_is_not_in_the_table(run: Run) -> None:
    assert "all_reduce_bytes" not in rows(run), "there is no trace"
    assert "job_s" not in rows(run)
    assert rows(run, Summary()) == {}


def test_the_jobs_own_time_is_measured_from_its_start_to_its_end(run: Run) -> None:
    document = json.loads(run.plan.read_text(encoding="utf-8"))
    document["numbers"]["job_s"] = {"label": "the whole job", "value": 20, "unit": "s", "low": 10, "high": 40}
    run.plan.write_text(json.dumps(document), encoding="utf-8")
    run.write_status(Status(state="completed", started_ns=1_000_000_000, ended_ns=31_000_000_000))
    assert rows(run)["job_s"].measured == 30
    assert rows(run)["job_s"].ratio == 1.5


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", '{"numbers": 3}', '{"numbers": {"step_ns": {"value": "fast"}}}', "\x00"]
)
def test_a_damaged_plan_is_left_out_of_the_report(run: Run, damaged: str) -> None:
    run.plan.write_text(damaged, encoding="utf-8")
    assert rows(run) == {}
    run.plan.unlink()
    assert rows(run) == {}


def test_the_page_has_the_table_with_range_and_ratio(run: Run) -> None:
    document = json.loads(run.plan.read_text(encoding="utf-8"))
    speed = {"label": "tokens per second", "value": 20_000, "unit": "tokens/s", "low": 10_000, "high": 40_000}
    document["numbers"]["tokens_per_s"] = speed
    run.plan.write_text(json.dumps(document), encoding="utf-8")
    summary = measured()
    summary.predictions = predicted_and_measured(summary, read_plan(run))
    (table,) = [t for t in page_tables(summary, "steps") if t.caption.startswith("Numbers of the plan")]
    shown = [row for row in table.rows if row[0] == "tokens per second"]
    assert shown == [["tokens per second", "10.0 to 40.0 ktokens/s", "20.0 ktokens/s", "1.00"]]
