"""What the tests of `check --rev` share: repositories, and trainings as fast as a file says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.experiment.exercises import OwnTraining
from harness.run import Run
from harness.run.record import SeriesPart
from tests.study.check_shared import stand_in_for_training
from tests.waiting import limit_s

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
