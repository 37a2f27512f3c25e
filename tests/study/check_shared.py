"""What the tests of `slurm.sh check` share: a stand-in for training that leaves a run's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.common.run_folder.run_files import METRICS
from harness.launch.backends import local
from harness.run import Run
from harness.run.record import SeriesPart, Status

Ms = Callable[[SeriesPart, Run], float | None]
"""A run's place in its series, and the run → its step in milliseconds; None: it fails."""
STEPS = 6


def write_metrics(folder: Path, ms: float, **start: object) -> None:
    """The lines of a rank whose steps all take so long."""
    file = METRICS.path(folder, 0)
    file.parent.mkdir(exist_ok=True)
    told = {"world_size": 1, "host": "n0", "device": "cpu", "device_name": "a CPU", "model": "tiny", "seq_length": 8}
    first = {"event": "start", "rank": 0, **told, "versions": {"torch": "2.13.0"}, **start}
    steps = [
        {"event": "step", "step": i, "phase": "active", "step_ns": round(ms * 1e6), "tokens": 16} for i in range(STEPS)
    ]
    end = {"event": "end", "rank": 0, "status": "completed", "reason": None, "steps": STEPS}
    file.write_text("".join(json.dumps(line) + "\n" for line in (first, *steps, end)), encoding="utf-8")


class Killed(BaseException):
    """The command ends as if it had been killed."""


def stand_in_for_training(patch: pytest.MonkeyPatch, ms_of: Ms, killed_after: int | None = None) -> list[SeriesPart]:
    """From now on, a local run ends at once, with steps as `ms_of` says; returns the runs' places as they are made.

    killed_after: so many runs; then Killed is raised."""
    made: list[SeriesPart] = []

    def start(script: Path, _job_id: str, _folder: Path, **_: object) -> None:
        run = Run(script.parent)
        part = run.record.part
        assert part is not None
        ms = ms_of(part, run)
        made.append(part)
        if ms is not None:
            write_metrics(run.path, ms)
        run.write_status(Status(state="failed" if ms is None else "completed", started_ns=1, ended_ns=2))
        if len(made) == killed_after:
            raise Killed

    patch.setattr(local, "start_controller", start)
    patch.setattr(local, "POLL_S", 0.0)
    patch.setenv("HARNESS_SITE", "local")
    return made
