"""`observe` before a real container that the user starts, and inside of one."""

from __future__ import annotations

import json
import subprocess
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


@pytest.mark.long  # the word inside of the container is tested below
def test_the_word_before_a_container_shows_it_the_observer(tmp_path: Path) -> None:
    training = [PYTHON, str(SCRIPTS / "one_process.py"), "--steps", str(STEPS)]
    argv = [*WORD, "--no-report", "--", *contained(str(SCRIPTS), str(tmp_path)), *training]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert steps(run) == STEPS


def test_the_word_inside_of_a_container(tmp_path: Path) -> None:
    word = [PYTHON, "-c", f"import sys; sys.path.append({str(REPOSITORY)!r}); import harness.__main__", "observe"]
    training = [*word, "--no-report", "--", PYTHON, str(SCRIPTS / "one_process.py"), "--steps", str(STEPS)]
    argv = [*contained(str(REPOSITORY), str(tmp_path)), *training]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert steps(run) == STEPS
