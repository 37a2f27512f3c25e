"""`logs` of a run without a log says why: its folder was moved, or nothing is printed yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.run.record import State, Status
from tests.launch.launch_shared import a_run


@pytest.mark.parametrize(
    ("state", "said"),
    [("completed", "is completed, and its logs are missing"), ("queued", "has not printed anything yet")],
)
def test_no_logs_are_explained_by_the_runs_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: State, said: str
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    a_run(tmp_path, "local-1").write_status(Status(state=state))
    assert main(["logs", "local-1"]) == 0
    assert said in capsys.readouterr().err
