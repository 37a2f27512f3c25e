"""The notebook that the harness ships opens a training's run."""

from __future__ import annotations

import pytest

from tests.exercises.launching import Run
from tests.report.notebook_cells import executed


def test_the_notebook_shows_the_steps_of_both_ranks(ddp: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names, figures = executed(monkeypatch, ddp.folder)
    assert {rank: len(times) for rank, times in names["times"].items()} == {"rank 0": 3, "rank 1": 3}
    assert {row.kind for row in names["summary"].collectives} >= {"all_reduce"}
    assert len(figures) >= 4
