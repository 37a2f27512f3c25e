"""One comparison: every command that compares runs gives the same keys and words, and the same verdict of the same
runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.compare.comparison import Comparison
from harness.compare.verdict import ChangeVerdict
from harness.experiment.exercises import DDP
from tests.study.recorded_reference import recorded
from tests.study.reference_runs import alone, made_run

STEPS_MS = ((100.0, 100.4, 99.7, 100.1), (120.0, 120.5, 119.8, 120.2))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return alone(tmp_path, monkeypatch)


@pytest.fixture
def runs(root: Path) -> tuple[list[str], list[str]]:
    """Four runs of a command and four that are slower by a fifth."""
    asked = DDP(gpus_per_node=2)
    a, b = ([made_run(root, asked, ms).job_id for ms in arm] for arm in STEPS_MS)
    return a, b


def said(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_every_command_gives_the_same_keys_and_words(
    root: Path, runs: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(root, "then")
    a, b = runs
    found = {
        "compare": said(capsys, "compare", a[0], b[0])["step_time"],
        "check": said(capsys, "check", ",".join(a), ",".join(b)),
        "reference": said(capsys, "reference", "check", *b, "--against", "then")["variants"][0]["time"],
        "lesson": said(capsys, "lesson", "1a", "--reference", "then")["step_time"],
    }
    for command, each in found.items():
        assert each.keys() >= Comparison.model_fields.keys(), command
        assert ChangeVerdict(each["verdict"]) is ChangeVerdict.WORSE, command
        assert each["ratio"] == pytest.approx(1.8 if command == "lesson" else 1.2, abs=0.01), command
        assert each["low"] < each["ratio"] < each["high"] or each["noise"] == "steps", command
        assert {"name", "value", "n"} <= each["a"].keys() & each["b"].keys(), command


def test_check_and_a_reference_agree_on_the_same_runs(
    runs: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.compare.arms import Arm
    from harness.compare.comparison import compare_arms, samples

    checked = said(capsys, "check", *map(",".join, runs), "--metric", "mean_step_ns")
    a, b = (Arm("", samples([ms * 1e6 for ms in arm])) for arm in STEPS_MS)
    again = compare_arms("mean_step_ns", a, b)
    assert [checked[name] for name in ("ratio", "low", "high")] == pytest.approx([again.ratio, again.low, again.high])
    assert checked["verdict"] == again.verdict.value


@pytest.mark.parametrize("command", ["compare", "check"])
def test_the_difference_is_shown_with_its_noise_in_one_form(
    runs: tuple[list[str], list[str]], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = [",".join(arm) for arm in runs] if command == "check" else [arm[0] for arm in runs]
    main([command, *words])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("worse") and "±" in line]
    assert " ".join(line.split()).split(" ms ")[-1].startswith("+20.")
