"""What a series should cost before it starts: the sums, what they rest on, and what is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.experiment.exercises import DDP, CommTests, Experiment
from harness.launch.submit import prepare
from harness.plan.history import elapsed_of_same
from harness.plan.plan import run_cost
from harness.run.record import State, Status
from harness.site.site import load_site
from harness.study.series.cost import (
    RunCounts,
    SeriesCost,
    cost_document,
    cost_lines,
    device_ns,
    elapsed_ns,
    series_cost,
)
from harness.study.series.points import HOUR_NS, SeriesPoint, SeriesTask, observed, prepared
from tests.study.series_shared import SECOND_NS, a_run, point, tasks

LEONARDO = load_site("leonardo")


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    return tmp_path


def at_leonardo(*asked: Experiment) -> list[SeriesTask]:
    return prepared([SeriesPoint(str(number), one, LEONARDO, 0, []) for number, one in enumerate(asked)])


def measured(root: Path, task: SeriesTask, *, number: int, took_s: float, steps: int, step_s: float) -> None:
    """A completed run whose summary has the speed of such steps."""
    run = a_run(root, task, "completed", number=number, took_s=took_s)
    summary = {
        "run": {"job_id": f"local-{number}", "site": {"name": task.point.site.name}},
        "experiment": {"exercise": 1},
        "world_size": task.devices,
        "training": [{"dtype": "float32", "steps_total": steps, "median_step_ns": round(step_s * SECOND_NS)}],
        "efficiency": {"mfu": None, "model_flops_per_s_per_device": 1e9},
    }
    run.summary.write_text(json.dumps(summary), encoding="utf-8")


def text(cost: SeriesCost) -> str:
    return "\n".join(cost_lines(cost))


# ---- Earlier runs of the same settings


def test_runs_of_the_same_settings_say_how_long_the_next_ones_take(runs: Path) -> None:
    first, second = wanted = tasks(2, ranks=2)
    for number, took in enumerate((60, 90)):
        a_run(runs, first, "completed", number=number, took_s=took, series="another")
    a_run(runs, second, "completed", number=9, took_s=110, series="another")
    cost = series_cost(wanted, [*wanted, first])
    low, high = cost.expected()
    assert elapsed_ns(low) == pytest.approx((60 + 60 + 110 / 1.1) * SECOND_NS), "a single run says 10 % up and down"
    assert elapsed_ns(high) == pytest.approx((90 + 90 + 110 * 1.1) * SECOND_NS)
    assert device_ns(high) == 2 * elapsed_ns(high)
    assert "to make: 3 runs, expected 3.7 to 5.0 min (3 from earlier runs of the same settings), at most 30.0 min" in (
        text(cost)
    )


@pytest.mark.parametrize("state", ["failed", "timeout", "cancelled", None])
def test_only_completed_runs_are_asked(runs: Path, state: State | None) -> None:
    (task,) = tasks(1)
    a_run(runs, task, state, number=1)
    assert elapsed_of_same(task.prepared.job) == []


def test_other_settings_another_site_or_profiler_say_nothing_and_another_seed_does(runs: Path) -> None:
    (task,) = tasks(1)
    a_run(runs, task, "completed", number=1, took_s=60)
    job, asked, site = task.prepared.job, task.point.experiment, task.point.site

    def of(**changed: object) -> list[int]:
        return elapsed_of_same(prepare(asked.model_copy(update=changed), site).job)

    assert elapsed_of_same(job) == of() == of(seed=7) == [60 * SECOND_NS]
    assert of(micro_batch_size=2) == of(slow_dataloading=True) == of(gpus_per_node=2) == of(profiler="torch") == []
    assert elapsed_of_same(prepare(asked, site.model_copy(update={"name": "elsewhere"})).job) == []


def test_a_damaged_record_or_one_of_another_version_says_nothing(runs: Path) -> None:
    (task,) = tasks(1)
    run = a_run(runs, task, "completed", number=1)
    document = json.loads(run.record_file.read_text(encoding="utf-8"))
    document["job"]["experiment"]["an_option_of_another_version"] = 1
    for damaged in (json.dumps(document), "[]", "{", '{"job": 3}'):
        run.record_file.write_text(damaged, encoding="utf-8")
        assert elapsed_of_same(task.prepared.job) == []


# ---- The plan


def test_without_earlier_runs_the_plans_steps_are_summed_and_the_missing_start_is_named() -> None:
    one, two = wanted = at_leonardo(DDP(), DDP(nodes=2))
    steps = [run_cost(task.prepared).steps_s for task in wanted]
    assert steps[0] and steps[1]
    cost = series_cost(wanted, wanted)
    low, high = cost.expected()
    assert [device_ns(low), device_ns(high)] == pytest.approx(
        [(one.devices * steps[0][i] + two.devices * steps[1][i]) * SECOND_NS for i in (0, 1)]
    )
    said = text(cost)
    assert "GPU hours (plan: 2 runs), at most 6.00 GPU hours (the time limit: 4 × 00:30:00, 8 × 00:30:00 each)" in said
    # (4 + 8) GPUs × 1 minute
    assert "not included: the start of 2 runs (imports, weights, conversion)" in said
    assert said.endswith("a minute in each adds 0.2 GPU hours")


def test_the_start_is_that_of_earlier_runs_their_time_without_their_steps(runs: Path) -> None:
    (before,) = tasks(1)
    measured(runs, before, number=1, took_s=50, steps=20, step_s=1.0)
    measured(runs, before, number=2, took_s=70, steps=20, step_s=1.0)
    (other,) = prepared([point(4)])
    cost = run_cost(other.prepared)
    assert cost.start_known and cost.start_s == (30.0, 50.0)
    assert cost.expected_s is not None and cost.steps_s is not None
    found = series_cost([other], [other])
    low, high = found.expected()
    assert (elapsed_ns(low), elapsed_ns(high)) == pytest.approx(tuple(s * SECOND_NS for s in cost.expected_s))
    assert cost.expected_s[0] == cost.steps_s[0] + 30
    assert found.counts().from_plan == 1 and "the start of" not in text(found)
    assert text(found).endswith("not included: reading each run's recording after its end")


def test_a_run_is_not_expected_to_pass_its_time_limit(runs: Path) -> None:
    wanted = at_leonardo(DDP(steps=100_000))
    cost = series_cost(wanted, wanted)
    low, high = cost.expected()
    assert device_ns(low) == device_ns(high) == device_ns(cost.worst) == 2 * HOUR_NS
    assert "expected 2.00 GPU hours (plan: 1 run), at most 2.00 GPU hours" in text(cost)
    (task,) = tasks(1, "00:01:00")
    a_run(runs, task, "completed", number=1, took_s=300)
    low, high = series_cost([task], [task]).expected()
    assert elapsed_ns(low) == elapsed_ns(high) == 60 * SECOND_NS, "its limit is shorter now"


# ---- What is not known


def test_what_cannot_be_predicted_is_counted_and_left_out() -> None:
    wanted = at_leonardo(DDP(), CommTests(), CommTests(nodes=2))
    cost = series_cost(wanted, wanted)
    assert cost.counts() == RunCounts(3, from_earlier_runs=0, from_plan=1, without_estimate=2, without_start=1)
    assert len(cost.expected()[0]) == 1 and len(cost.worst) == 3
    assert "no estimate for 2 runs: no earlier run here shows the time, and the plan knows no speed" in text(cost)


def test_a_first_series_on_these_cpus_has_no_estimate_and_says_so() -> None:
    wanted = tasks(2)
    said = text(series_cost(wanted, wanted))
    assert said.startswith("to make: 2 runs, expected: not known, at most 20.0 min (the time limit: 00:10:00 each)")
    assert "no estimate for 2 runs" in said


# ---- What was spent, and the JSON document


def test_ended_runs_count_with_their_time_and_open_ones_with_their_limit(runs: Path) -> None:
    first, second, third = wanted = tasks(3, ranks=2)
    ended = a_run(runs, first, "completed", number=1, took_s=90)
    opened = a_run(runs, second, None, number=2)
    opened.write_status(Status(state="running", started_ns=1))
    found = [observed(ended), observed(opened)._replace(state="running", began=True)]
    cost = series_cost(wanted, [third], found)
    assert text(cost).startswith("spent so far: 90 s, at most 10.0 min more by the running jobs\nto make: 1 run, ")
    assert cost.most_ns == 2 * (90 + 600 + 600) * SECOND_NS
    assert text(series_cost(wanted, [], found)).count("\n") == 0, "nothing is to make"


def test_every_number_of_the_document_has_its_unit(runs: Path) -> None:
    (task,) = wanted = tasks(1, ranks=2)
    a_run(runs, task, "completed", number=1, took_s=60, series="another")
    found = cost_document(series_cost(wanted, wanted))
    assert found.pop("runs")["from_earlier_runs"] == 1
    assert {name: row["unit"] for name, row in found.items()} == {
        "spent_device_hours": "process h", "running_device_hours": "process h", "most_device_hours": "process h",
        "most_elapsed_s": "s", "expected_device_hours": "process h", "expected_elapsed_s": "s",
    }  # fmt: skip
    assert found["expected_elapsed_s"]["high"] == pytest.approx(66)
    assert found["most_device_hours"]["value"] == pytest.approx(2 * 600 / 3600)


# ---- The commands


def test_a_recording_says_what_it_should_cost_for_the_variants_that_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["reference", "record", "--site", "leonardo", "--dry-run", "--only", "ddp", "--only", "zero3,zero2"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["ddp", "zero3", "zero2"]
    assert "to make: 3 runs, expected 0." in said.err
    assert " GPU hours (plan: 3 runs), at most 6.00 GPU hours" in said.err
    assert main([*words, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert cost["expected_device_hours"]["low"] < cost["expected_device_hours"]["high"] < 6


@pytest.mark.parametrize(
    ("only", "sentences"),
    [
        (
            ["--only", "dpd", "--only", "zero33"],
            ["no variant 'dpd': did you mean dp2?", "no variant 'zero33': did you mean zero3?"],
        ),
        (["--only", ","], ["--only: name a variant"]),
        (["--only"], ["--only requires an argument"]),
    ],
)
def test_an_unknown_variant_is_a_sentence_with_the_nearest(
    only: list[str], sentences: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reference", "record", "--site", "local", "--dry-run", *only]) == 2
    said = capsys.readouterr().err
    assert all(sentence in said for sentence in sentences), said
    assert list(runs.iterdir()) == []


def test_a_scaling_study_says_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["sweep", "scaling", "-e", "1", "--nodes", "1,2", "--repeats", "1", "--site", "leonardo", "--dry-run"])
        == 0
    )
    assert "to make: 2 runs, expected 0." in capsys.readouterr().err
