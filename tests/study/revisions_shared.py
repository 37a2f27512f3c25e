"""What the tests of `check --rev` and `--bisect` share: repositories, and trainings as fast as a file says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.experiment.exercises import OwnTraining
from harness.launch.backends import local
from harness.run import Run
from harness.run.record import Status
from tests.study.check_shared import write_metrics
from tests.waiting import limit_s

LAUNCH = "run -g 1 --no-profile -- train.py"
REAL_LAUNCH = "run -g 1 --no-profile --skip-steps 2 --wait-steps 0 --warmup-steps 0 --active-steps 20 -- train.py"
NOISE = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, 0.05, -0.1)  # ms
SPEED = "speed.txt"  # milliseconds of a step

TRAIN = """
import torch

torch.set_num_threads(1)
layer = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
rounds = int(open("rounds.txt").read())
for step in range(30):
    optimizer.zero_grad()
    mixed = torch.ones(256, 256)
    for _ in range(rounds):
        mixed = torch.tanh(mixed @ mixed / 256)
    layer(mixed).square().mean().backward()
    optimizer.step()
"""


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

    def start(script: Path, _job_id: str, _folder: Path, **_: object) -> None:
        run = Run(script.parent)
        part = run.record.part
        assert part is not None
        before(run)
        made.append(run)
        word = (folder_of(run) / SPEED).read_text().strip()
        is_number = word.replace(".", "").isdigit()
        if is_number:
            noise = NOISE[(part.repeat + 3 * (part.point == "b")) % len(NOISE)]
            write_metrics(run.path, float(word) * (1 + noise / 100))
        run.write_status(Status(state="completed" if is_number else "failed", started_ns=1, ended_ns=2))

    patch.setattr(local, "start_controller", start)
    patch.setattr(local, "POLL_S", 0.0)
    patch.setenv("HARNESS_SITE", "local")
    return made


def folder_of(run: Run) -> Path:
    """Where the run's training started."""
    asked = run.record.experiment
    assert isinstance(asked, OwnTraining)
    return Path(asked.start_in)


def commits_of(runs: list[Run]) -> list[str]:
    """The commits that the runs' records name."""
    return [str(run.record.program.git["commit"]) for run in runs if run.record.program]


def real_bisect(folder: Path) -> None:
    """A bisect is under way over c0, …, c3 of a training that really trains; c2 made it slow."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "train.py").write_text(TRAIN)
    for number, rounds in enumerate((10, 10, 100, 100)):
        (folder / "rounds.txt").write_text(f"{rounds}\n")
        (folder / "notes.txt").write_text(f"{number}\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", f"c{number}")
    git(folder, "bisect", "start", "HEAD", "HEAD~3")


def blamed(folder: Path, done: subprocess.CompletedProcess[str]) -> str:
    """The title of the commit that `git bisect run` calls the first bad one."""
    assert "is the first bad commit" in done.stdout, done.stdout + done.stderr
    commit = done.stdout.partition(" is the first bad commit")[0].splitlines()[-1]
    return git(folder, "log", "-1", "--format=%s", commit)
