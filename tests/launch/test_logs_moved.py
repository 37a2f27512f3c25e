"""`logs` of a run that was moved away from its logs says so."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.experiment.exercises import DDP
from harness.run import Record, Run, Stage, State, Status
from harness.site.site import load_site


@pytest.mark.parametrize(
    ("state", "said"),
    [("completed", "is completed, and its logs are not beside it"), ("queued", "has printed nothing yet")],
)
def test_no_logs_are_explained_by_the_runs_state(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: State,
    said: str,
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    asked = DDP()
    record = Record(
        job_id="local-1", backend="local", experiment=asked, site=load_site("local"), job={}, command=[],
        git={}, versions={}, user="x", submit_host=socket.gethostname(), created_ns=time.time_ns(),
    )  # fmt: skip
    with Stage(tmp_path / asked.folder) as stage:
        Run(stage.path).write_record(record)
        run = stage.publish("x-local-1", "local-1")
    run.write_status(Status(state=state))
    assert main(["logs", "local-1"]) == 0
    assert said in capsys.readouterr().err
