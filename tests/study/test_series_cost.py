"""What a series costs at most, before it starts: devices × time limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment.exercises import DDP
from harness.site.site import load_site
from harness.study.series.cost import cost_document, making
from harness.study.series.points import SeriesPoint, prepared
from tests.study.kit import Say
from tests.study.recorded_reference import two
from tests.study.series_shared import tasks

pytestmark = pytest.mark.usefixtures("runs")


def test_it_is_the_devices_of_each_run_times_its_limit_and_here_their_time_one_after_the_other() -> None:
    place = load_site("leonardo")
    wanted = prepared([SeriesPoint(str(nodes), DDP(nodes=nodes), place, 0, []) for nodes in (1, 2)])
    assert making(wanted) == "2 runs, at most 6 GPU hours (the time limit: 4 × 00:30:00, 8 × 00:30:00 each)"
    assert making(tasks(2)) == "2 runs, at most 20 min (the time limit: 00:10:00 each)"


def test_every_number_of_the_document_has_its_unit() -> None:
    assert cost_document(tasks(1, ranks=2)) == {
        "runs": {"to_make": 1},
        "most_device_hours": {
            "name": "most_device_hours", "value": pytest.approx(1 / 3), "unit": "process h", "source": "the time limit"
        },
        "most_elapsed_s": {"name": "most_elapsed_s", "value": 600, "unit": "s", "source": "the time limit"},
    }  # fmt: skip


def test_a_recording_says_what_it_costs_at_most(runs: Path, say: Say) -> None:
    recording = ("reference", "record", "--site", "local", "--list", two(runs), "--dry-run")
    assert "to make: 2 runs, at most 4 h (the time limit: 02:00:00 each)" in say(*recording).err
    cost = say(*recording, "--json").json["cost"]
    assert (cost["runs"], cost["most_device_hours"]["value"]) == ({"to_make": 2}, 8)
