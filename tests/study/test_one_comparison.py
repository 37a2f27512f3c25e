"""One comparison: every command that compares runs gives the same keys and words, and the same verdict of the same
runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compare.comparison import Comparison
from harness.experiment.exercises import DDP
from tests.study.kit import Say
from tests.study.recorded_reference import recorded
from tests.study.reference_runs import made_run

STEPS_MS = ((100.0, 100.4, 99.7, 100.1), (120.0, 120.5, 119.8, 120.2))


@pytest.fixture
def arms(runs: Path) -> tuple[list[str], list[str]]:
    """Four runs of a command and four that are slower by a fifth."""
    a, b = ([made_run(runs, DDP(gpus_per_node=2), ms).job_id for ms in arm] for arm in STEPS_MS)
    return a, b


def test_every_command_gives_the_same_keys_and_words(runs: Path, arms: tuple[list[str], list[str]], say: Say) -> None:
    recorded(runs, "then")
    a, b = arms
    found = {
        "compare": say("compare", a[0], b[0], "--json").json["step_time"],
        "check": say("check", ",".join(a), ",".join(b), "--json").json,
        "reference": say("reference", "check", *b, "--against", "then", "--json").json["variants"][0]["time"],
        "lesson": say("lesson", "1a", "--reference", "then", "--json").json["step_time"],
    }
    for command, each in found.items():
        assert each.keys() >= Comparison.model_fields.keys() and each["verdict"] == "worse", command
        assert each["ratio"] == pytest.approx(1.8 if command == "lesson" else 1.2, abs=0.01), command
        assert each["low"] < each["ratio"] < each["high"] or each["noise"] == "steps", command
        assert {"name", "value", "n"} <= each["a"].keys() & each["b"].keys(), command
