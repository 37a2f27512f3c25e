"""What a series costs at most, before it starts: devices × time limits, and what it has spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.experiment.exercises import DDP
from harness.run.record import Status
from harness.site.site import load_site
from harness.study.series.cost import SeriesCost, cost_document, cost_lines, series_cost
from harness.study.series.points import SeriesPoint, observed, prepared
from tests.study.series_shared import SECOND_NS, a_run, tasks

LEONARDO = load_site("leonardo")


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    return tmp_path


def text(cost: SeriesCost) -> str:
    return "\n".join(cost_lines(cost))


def test_on_a_cluster_it_is_the_devices_of_each_run_times_its_limit() -> None:
    wanted = prepared([SeriesPoint(str(nodes), DDP(nodes=nodes), LEONARDO, 0, []) for nodes in (1, 2)])
    said = text(series_cost(wanted, wanted))
    assert said == "to make: 2 runs, at most 6.00 GPU hours (the time limit: 4 × 00:30:00, 8 × 00:30:00 each)"


def test_on_this_machine_it_is_the_time_of_the_runs_one_after_the_other() -> None:
    wanted = tasks(2)
    assert text(series_cost(wanted, wanted)) == "to make: 2 runs, at most 20.0 min (the time limit: 00:10:00 each)"


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


def test_every_number_of_the_document_has_its_unit() -> None:
    wanted = tasks(1, ranks=2)
    found = cost_document(series_cost(wanted, wanted))
    assert found.pop("runs") == {"to_make": 1}
    assert {name: row["unit"] for name, row in found.items()} == {
        "spent_device_hours": "process h", "running_device_hours": "process h", "most_device_hours": "process h",
        "most_elapsed_s": "s",
    }  # fmt: skip
    assert found["most_device_hours"]["value"] == pytest.approx(2 * 600 / 3600)


# ---- The commands


def test_a_recording_says_what_it_costs_at_most_for_the_variants_that_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["reference", "record", "--site", "leonardo", "--dry-run", "--only", "ddp", "--only", "zero3,zero2"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["ddp", "zero3", "zero2"]
    assert "to make: 3 runs, at most 6.00 GPU hours (the time limit: 4 × 00:30:00 each)" in said.err
    assert main([*words, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["cost"]
    assert (cost["runs"], cost["most_device_hours"]["value"]) == ({"to_make": 3}, 6)


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
    assert "to make: 2 runs, at most 6.00 GPU hours" in capsys.readouterr().err
