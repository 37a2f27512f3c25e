"""What the tests of `slurm.sh check` share: a stand-in for training that leaves a run's files, and repositories."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.common.run_folder.run_files import METRICS
from harness.experiment.exercises import DDP, OwnTraining
from harness.launch.backends import local
from harness.run import Run
from harness.run.record import SeriesPart, Status
from tests.study.kit import completed
from tests.waiting import limit_s

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


def some_runs(root: Path, *times_ms: float, first: int = 1, **start: object) -> str:
    """Completed runs with such steps, as an arm's word."""
    for i, ms in enumerate(times_ms, first):
        write_metrics(completed(root, f"local-{i}", DDP()).path, ms, **start)
    return ",".join(f"local-{i}" for i in range(first, first + len(times_ms)))


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


# ---- Repositories, and trainings as fast as a file says


LAUNCH = "run -g 1 --no-profile -- train.py"
NOISE = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, 0.05, -0.1)  # ms
SPEED = "speed.txt"  # milliseconds of a step


def git(folder: Path, *arguments: str) -> str:
    who = {f"GIT_{whose}_{what}": "s@example.org" for whose in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=os.environ | who,
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(),
    )
    return done.stdout.strip()


def commit(folder: Path, title: str, ms: float | str) -> str:
    """A commit whose training takes so long a step; a word in place of a number: it fails. Returns its hash."""
    (folder / SPEED).write_text(f"{ms}\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", title)
    return git(folder, "rev-parse", "HEAD")


def repository(folder: Path, *speeds: float | str) -> list[str]:
    """A repository with a commit for each speed, called c0, c1, …; returns their hashes."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "train.py").write_text("print('trained')\n")
    return [commit(folder, f"c{i}", ms) for i, ms in enumerate(speeds)]


def stand_in_by_file(patch: pytest.MonkeyPatch, before: Callable[[Run], None] = lambda _: None) -> list[Run]:
    """From now on a local run ends at once, with the steps that the file of its own revision says; returns the runs as
    they are made. before: called with each."""
    made: list[Run] = []

    def ms_of(part: SeriesPart, run: Run) -> float | None:
        before(run)
        made.append(run)
        word = (folder_of(run) / SPEED).read_text().strip()
        noise = NOISE[(part.repeat + 3 * (part.point == "b")) % len(NOISE)]
        return float(word) * (1 + noise / 100) if word.replace(".", "").isdigit() else None

    stand_in_for_training(patch, ms_of)
    return made


def folder_of(run: Run) -> Path:
    """Where the run's training started."""
    asked = run.record.experiment
    assert isinstance(asked, OwnTraining)
    return Path(asked.start_in)


def commits_of(runs: list[Run]) -> list[str]:
    """The commits that the runs' records name."""
    return [str(run.record.program.git["commit"]) for run in runs if run.record.program]
