"""A launch on a CPU prints its progress before the training starts, and no warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from exercises.utils.announce import announce

pytest.importorskip("deepspeed", reason="the training extra is not installed")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({}, True),
        ({"RANK": "0", "NODE": "0"}, True),
        ({"RANK": "3", "NODE": "0"}, False),
        ({"NODE": "1"}, False),
        ({"SLURM_NODEID": "1"}, False),
    ],
)
def test_the_progress_of_a_training_is_printed_once_for_all_ranks(
    environment: dict[str, str], speaks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "NODE", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    announce("building")
    assert capsys.readouterr().err == ("building …\n" if speaks else "")
