"""`observe` before a real container that the user starts, and inside of one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from own_trainings import SCRIPTS

from tests.container.images import PACKAGES, PYTHON, apptainer, sif
from tests.own.test_observe import REPOSITORY, WORD, environ, runs
from tests.waiting import limit_s

pytestmark = pytest.mark.train
STEPS = 8


def steps(run: Path) -> int:
    lines = (run / "metrics/rank0.jsonl").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines].count("step")


def contained(*more: str) -> list[str]:
    binds = ",".join([PACKAGES, *more])
    return [str(apptainer()), "exec", "--bind", binds, str(sif())]


def around(folder: Path) -> list[str]:
    """The word before the container."""
    return [*WORD, "--no-report", "--", *contained(str(SCRIPTS), str(folder)), PYTHON]


def inside(folder: Path) -> list[str]:
    """The word in it."""
    word = f"import sys; sys.path.append({str(REPOSITORY)!r}); import harness.__main__"
    started = [PYTHON, "-c", word, "observe", "--no-report", "--", PYTHON]
    return [*contained(str(REPOSITORY), str(folder)), *started]


@pytest.mark.parametrize("word", [pytest.param(around, marks=pytest.mark.long), inside])
def test_the_word_shows_the_container_the_observer(tmp_path: Path, word: Callable[[Path], list[str]]) -> None:
    argv = [*word(tmp_path), str(SCRIPTS / "one_process.py"), "--steps", str(STEPS)]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert steps(run) == STEPS
