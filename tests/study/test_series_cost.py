"""What a series costs at most, before it starts: devices × time limits, and what it has spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment.exercises import DDP
from harness.run.record import Status
from harness.site.site import load_site
from harness.study.series.cost import SeriesCost, cost_document, cost_lines, series_cost
from harness.study.series.points import SeriesPoint, prepared
from harness.study.series.runs import observed
from tests.study.kit import Say
from tests.study.recorded_reference import two
from tests.study.series_shared import SECOND_NS, a_run, tasks

LEONARDO = load_site("leonardo")


pytestmark = pytest.mark.usefixtures("runs")


def text(cost: SeriesCost) -> str:
    return "\n".join(cost_lines(cost))


def test_it_is_the_devices_of_each_run_times_its_limit_and_here_their_time_one_after_the_other() -> None:
    wanted = prepared([SeriesPoint(str(nodes), DDP(nodes=nodes), LEONARDO, 0, []) for nodes in (1, 2)])
    said = text(series_cost(wanted, wanted))
    assert said == "to make: 2 runs, at most 6.00 GPU hours (the time limit: 4 × 00:30:00, 8 × 00:30:00 each)"
    here = tasks(2)
    assert text(series_cost(here, here)) == "to make: 2 runs, at most 20 min (the time limit: 00:10:00 each)"


def test_ended_runs_count_with_their_time_and_open_ones_with_their_limit(runs: Path) -> None:
    first, second, third = wanted = tasks(3, ranks=2)
    ended = a_run(runs, first, "completed", number=1, took_s=90)
    opened = a_run(runs, second, None, number=2)
    opened.write_status(Status(state="running", started_ns=1))
    found = [observed(ended), observed(opened)._replace(state="running", began=True)]
    cost = series_cost(wanted, [third], found)
    assert text(cost).startswith("spent so far: 1 min 30 s, at most 10 min more by the running jobs\nto make: 1 run, ")
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


def test_a_recording_says_what_it_costs_at_most(runs: Path, say: Say) -> None:
    recording = ("reference", "record", "--site", "local", "--list", two(runs), "--dry-run")
    assert "to make: 2 runs, at most 4 h (the time limit: 02:00:00 each)" in say(*recording).err
    cost = say(*recording, "--json").json["cost"]
    assert (cost["runs"], cost["most_device_hours"]["value"]) == ({"to_make": 2}, 8)
