"""A run on this machine needs the training packages: Python asks for them by exit status, slurm.sh installs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.common.errors import TrainingMissing

NEEDED = TrainingMissing.exit_code


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("harness.launch.before.check._has_torch", lambda: False)
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HARNESS_SITE", "local")


@pytest.mark.parametrize(
    "words",
    [
        ["-e", "1"],
        ["-e", "0", "--site=local"],
        ["lesson", "1a"],
        ["lesson", "1a", "--hint", "--run"],
        ["lesson", "--site", "local", "1a"],
        ["lesson", "1a", "--again", "--answer"],
    ],
)
def test_a_training_on_this_machine_asks_for_the_packages_and_does_nothing_else(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == NEEDED
    out, err = capsys.readouterr()
    assert out == "", "slurm.sh starts it again, and it would be printed twice"
    assert "bash slurm.sh --install train" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["-e", "1", "--dry-run"],
        ["-e", "1", "-h"],
        ["lesson"],
        ["lesson", "1a", "--hint"],
        ["lesson", "1a", "--answer"],
        ["lesson", "1a", "--no-run"],
        ["lesson", "--site", "local"],
        ["-e", "1", "--site", "slurm", "-g", "1"],  # there the training runs on the nodes
        ["-e", "5"],
        ["-e", "1", "--data", "/no/data.json"],  # a wrong request is refused before the download
    ],
)
def test_nothing_else_does(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (0, 2)
    assert "about a gigabyte" not in capsys.readouterr().err or "--dry-run" in words
