"""What the tests of several runs ask for: a folder of runs of their own, and what a command says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.main import main
from tests.study.kit import Said, Say
from tests.study.reference_runs import alone


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs and of references, on this machine without GPUs."""
    monkeypatch.setenv("HARNESS_SITE", "local")
    return alone(tmp_path, monkeypatch)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Gives the words of a command to the product, and returns what it said."""

    def ask(*words: str) -> Said:
        capsys.readouterr()
        code = main([*words])
        return Said(code, *capsys.readouterr())

    return ask
