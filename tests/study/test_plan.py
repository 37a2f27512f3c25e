"""`slurm.sh … --plan`: the verdict, the nearest setting that fits, where each number is from, and what is not known."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.cli.plan.plan import short_form
from harness.experiment.exercises import Experiment
from harness.launch.submit import PreparedLaunch, prepare
from harness.plan.numbers import plan_document
from harness.plan.plan import LaunchPlan, plan_of
from harness.run import Run
from harness.run.record import Status
from harness.site.site import Site, load_site
from tests.study.kit import completed

LEONARDO = ("--site", "leonardo")
LARGE = ("-e", "1", *LEONARDO, "--", "--model", "mistral-7b")


@pytest.fixture(autouse=True)
def no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No earlier runs, so that every number is theory's."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    return tmp_path


def prepared(*words: str) -> PreparedLaunch:
    from harness.cli.launch.launch import request_of
    from harness.cli.parser import declared, read_line

    experiment, choice = request_of(read_line([*words], declared()))
    return prepare(experiment, choice.site)


def planned(*words: str) -> LaunchPlan:
    return plan_of(prepared(*words))


def numbers(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = plan_document(planned(*words))["numbers"]
    return found


def test_every_number_has_a_unit_and_is_finite() -> None:
    for words in (("-e", "1"), ("-e", "2", "-n", "2"), ("-e", "3", "-n", "2", "--", "--pp", "2"), ("-e", "0")):
        found = numbers(*words[:2], *LEONARDO, *words[2:])
        assert all(row["unit"] and row["value"] >= 0 for row in found.values()), found


def test_the_parts_of_the_memory_add_up_to_it() -> None:
    found = numbers("-e", "2", "-n", "2", *LEONARDO)
    parts = ("weights", "gradients", "optimizer", "activations", "buffers", "framework")
    assert sum(found[f"{part}_bytes"]["value"] for part in parts) == found["planned_memory_bytes"]["value"]
    assert all(found[f"{part}_bytes"]["source"] for part in parts)


def test_what_does_not_fit_comes_with_a_launch_that_does() -> None:
    found = planned(*LARGE)
    assert found.memory is not None and found.memory.nearest is not None
    assert found.memory.verdict == "does not fit"
    words = shlex.split(found.memory.nearest.command)
    better = planned(*words[2:])
    assert better.memory is not None and better.memory.verdict == found.memory.nearest.verdict == "fits"
    assert found.memory.nearest.command in found.warnings[0]


def test_the_least_intrusive_change_comes_first() -> None:
    memory = planned("-e", "1", *LEONARDO, "--", "--micro-batch-size", "64").memory
    assert memory is not None and memory.verdict == "does not fit"
    assert memory.nearest is not None
    assert memory.nearest.command == "bash slurm.sh -e 1 --site leonardo -- --micro-batch-size 16"


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


def test_a_site_without_gpu_names_gets_numbers_and_no_verdict() -> None:
    found = planned("-e", "1", "--site", "slurm")
    assert found.memory is not None and found.step is not None
    assert found.memory.verdict == "not known"
    assert isinstance(found.step.speed, str)
    assert "gpus.name" in found.step.speed
    assert found.warnings == []


def test_faster_links_shorten_the_messages_and_never_lengthen_a_step() -> None:
    slow = load_site("leonardo")
    fast = slow.model_copy(update={"network": slow.network.model_copy(update={"link_inter_gbps": 800.0})})
    experiment = prepared("-e", "2", "-n", "2", *LEONARDO).experiment

    def of(site: Site, asked: Experiment = experiment) -> LaunchPlan:
        return plan_of(prepare(asked, site))

    one, other = of(slow).step, of(fast).step
    assert one is not None and other is not None and one.exposed and other.exposed and one.step_ns and other.step_ns
    assert other.exposed.total_ns < one.exposed.total_ns
    assert other.exposed.least_ns <= one.exposed.least_ns <= one.exposed.total_ns
    assert other.step_ns[0] <= one.step_ns[0]


def test_nothing_hides_without_overlap() -> None:
    plain, none = (planned("-e", "2", "-n", "2", *LEONARDO, "--", *more).step for more in ((), ("--ds-no-overlap",)))
    assert plain is not None and none is not None and plain.exposed is not None and none.exposed is not None
    assert plain.exposed.least_ns < plain.exposed.total_ns
    assert none.exposed.least_ns == none.exposed.total_ns


def test_the_worst_case_is_the_time_limit_and_the_expected_one_never_more() -> None:
    cost = planned("-e", "1", *LEONARDO, "--time", "00:01:00").cost
    assert cost.most_gpu_hours == pytest.approx(4 / 60)
    assert cost.gpu_hours() == (cost.most_gpu_hours, cost.most_gpu_hours)


def test_a_run_that_cannot_end_in_time_is_warned_of() -> None:
    found = planned("-e", "1", *LEONARDO, "--", "--steps", "100000")
    assert any("time limit" in warning for warning in found.warnings)


def stored(root: Path, asked: Experiment, /, **summary: Any) -> Run:
    """A completed run at Leonardo with a summary."""
    run = completed(root, "local-1", asked)
    record = run.record.model_copy(update={"site": load_site("leonardo")})
    run.write_record(record)
    run.write_status(Status(state="completed", started_ns=1, ended_ns=101_000_000_001))
    run.summary.write_text(json.dumps(summary), encoding="utf-8")
    named = run.path.with_name("Llama-3.2-1B-local-1-n1-g4")
    return Run(run.path.rename(named))


def speed_of(mfu: float, **more: Any) -> dict[str, Any]:
    return {
        "run": {"job_id": "4711", "site": {"name": "leonardo"}},
        "experiment": {"exercise": 1},
        "training": [{"dtype": "float32", "steps_total": 10, "median_step_ns": 10**9}],
        "efficiency": {"mfu": mfu, "model_flops_per_s_per_device": mfu * 21.5e12},
        **more,
    }


def test_the_sites_own_runs_say_how_fast_the_next_one_is(no_runs: Path) -> None:
    asked = prepared("-e", "1", *LEONARDO).experiment
    run = stored(no_runs, asked, **speed_of(0.25))
    found = planned("-e", "1", *LEONARDO)
    assert found.step is not None and not isinstance(found.step.speed, str)
    assert found.step.speed.earlier
    assert found.step.speed.low < 0.25 * 21.5e12 < found.step.speed.high
    assert "4711" in found.step.speed.source
    rows = plan_document(found)["numbers"]
    assert rows["mfu"]["low"] < 0.25 < rows["mfu"]["high"]
    assert rows["job_s"]["source"].endswith("earlier runs")
    assert found.cost.start_known and found.cost.start_s == (91.0, 91.0), "101 s without ten steps of a second"
    run.summary.write_text("{", encoding="utf-8")
    assert planned("-e", "1", *LEONARDO).step.speed.earlier is False  # type: ignore[union-attr]


def test_a_model_whose_name_begins_alike_says_nothing(no_runs: Path) -> None:
    asked = prepared("-e", "1", *LEONARDO).experiment
    run = stored(no_runs, asked, **speed_of(0.25))
    run.path.rename(run.path.with_name(run.path.name.replace("Llama-3.2-1B-", "Llama-3.2-1B-deep-")))
    assert planned("-e", "1", *LEONARDO).step.speed.earlier is False  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "other",
    [
        {"run": {"job_id": "1", "site": {"name": "juwels-booster"}}},
        {"experiment": {"exercise": 1, "faults": ["host-stall,ms=9"]}},
        {"training": [{"dtype": "bfloat16"}]},
        {"training": []},
        {"efficiency": None},
        {"efficiency": {"mfu": "0.3", "model_flops_per_s_per_device": "fast"}},
    ],
    ids=str,
)
def test_runs_elsewhere_of_other_precision_or_with_faults_say_nothing(no_runs: Path, other: dict[str, Any]) -> None:
    stored(no_runs, prepared("-e", "1", *LEONARDO).experiment, **speed_of(0.25, **other))
    step = planned("-e", "1", *LEONARDO).step
    assert step is not None and not isinstance(step.speed, str) and not step.speed.earlier


def test_exercise_0s_lines_replace_the_nominal_rates(no_runs: Path) -> None:
    from harness.experiment.comm_tests import CommTests

    run = completed(no_runs, "local-2", CommTests())
    run.write_record(run.record.model_copy(update={"site": load_site("leonardo")}))
    run = Run(run.path.rename(run.path.with_name("comm-tests-local-2-n1-g4")))
    run.collectives.parent.mkdir()
    fit = {"alpha_ns": 20_000.0, "beta_ns_per_byte": 0.01}
    result = {"collective": "all_reduce", "scope": "intra", "ranks": 4, "fit": fit}
    run.collectives.write_text(json.dumps({"hosts": ["a"], "results": [result, {"fit": None}]}), encoding="utf-8")
    step = planned("-e", "1", *LEONARDO).step
    assert step is not None
    (sent,) = step.sent
    assert sent.time_ns == pytest.approx(20_000 * (sent.traffic.messages or 0) + 0.01 * sent.traffic.message_bytes)
    assert "local-2" in sent.source


def test_strict_makes_a_warning_an_error_and_writes_nothing(no_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LARGE, "--plan", "--strict"]) == 2
    assert "--strict: an estimated" in capsys.readouterr().err
    assert main([*LARGE, "--plan"]) == 0
    assert "warning: an estimated" in capsys.readouterr().err
    assert main(["-e", "3", "-n", "4", *LEONARDO, "--dry-run", "--strict"]) == 2
    assert list(no_runs.iterdir()) == []


def test_the_page_says_each_formula_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-e", "2", "-n", "2", *LEONARDO, "--plan", "--", "--mixed-precision"]) == 0
    page = capsys.readouterr().out
    for text in ("14 + 14 + 84 = 112 GB", "2·N/8", "PaLM, 2022", "Rajbhandari", "PaLM", "between nodes", "GPU hours "):
        assert text in page


def test_json_has_every_number_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LARGE, "--plan", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "does not fit"
    assert found["fits_with"].startswith("bash slurm.sh -e")
    assert found["numbers"]["peak_memory_bytes"]["unit"] == "bytes"


def test_a_wrong_launch_is_a_wrong_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-e", "2", "--plan", "--nodse", "2"]) == 2
    assert "--nodes" in capsys.readouterr().err
    assert main(["-e", "2", "--plan", "--dry-run"]) == 2
    assert "--plan and --dry-run exclude each other" in capsys.readouterr().err


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


def test_the_page_names_the_global_batch_also_without_accumulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-e", "1", *LEONARDO, "--plan"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "global batch" in line)
    assert "16 samples" in line and "4 ranks × 1 accumulation step × micro-batch 4" in line


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


def test_what_memory_of_the_host_adds_is_not_judged() -> None:
    found = planned("-e", "1", "--site", "jupiter", "--", "--model", "mistral-7b", "--unified-memory")
    assert found.memory is not None and found.memory.verdict == "not known"
    assert "in the host's memory" in found.memory.capacity.source
