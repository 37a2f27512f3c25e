"""A new exercise is its two modules and its line in two lists, and is then known everywhere. It is added to a copy of
harness/, as a developer adds it; tests/repo adds an option."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.launch_shared import ROOT
from tests.waiting import limit_s

EXPERIMENT = """
from typing import Annotated, ClassVar, Literal

from harness.experiment.training import Training
from harness.experiment.options import switch, value


class Sequence(Training):
    title: ClassVar[str] = "sequence parallelism"
    folder: ClassVar[str] = "exercise_4_Sequence"
    default_model: ClassVar[str] = "tiny-llama"

    exercise: Annotated[Literal[4], value("-e", "--exercise", group="where")] = 4
    ring: bool = switch("--ring", tag="ring", train="--ring").option(False, "blocks travel around a ring")
"""
LAUNCH = """
from harness.experiment.sequence import Sequence
from harness.launch.exercises.base import CommandPlace, ExercisePlan, script_path, torchrun
from harness.launch.exercises.training import TrainingLaunch, training_plan, training_argv


class SequenceLaunch(TrainingLaunch[Sequence]):
    def plan(self, asked: Sequence, place: CommandPlace) -> ExercisePlan:
        script = script_path(asked, "train.py")
        return training_plan(asked, place, [*torchrun(asked, place), script, *training_argv(asked, place)], {})


LAUNCH = SequenceLaunch()
"""
# A lesson on the new field, the runs that can answer it, and a comparison of two runs.
ASKED_IN_PYTHON = """
from harness.compare.summaries import settings
from harness.analysis.summary import Summary
from harness.experiment.exercises import EXERCISES
from harness.study.lessons import ExperimentPair, at_site

cls = EXERCISES[4]
pair = at_site(ExperimentPair(a=cls(), b=cls(ring=True)), {"steps": 70, "ring": True})
print("lesson", [arm.ring for arm in (pair.a, pair.b)], [arm.steps for arm in (pair.a, pair.b)])
a, b = (settings(Summary(experiment=arm.model_dump())) for arm in (pair.a, pair.b))
print("differs", [name for name in a if a[name] != b[name]])
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with a harness/ of its own."""
    shutil.copytree(ROOT / "harness", tmp_path / "harness")
    for name in ("configs", "templates", "exercises", "slurm.sh"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def python(tree: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(tree), "HARNESS_RUNS": str(tree / "runs"), "HARNESS_SITE": "local"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=env, capture_output=True, text=True, check=False, timeout=limit_s(120)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_a_fifth_exercise(tree: Path) -> None:
    (tree / "harness/experiment/sequence.py").write_text(EXPERIMENT)
    (tree / "harness/launch/exercises/sequence.py").write_text(LAUNCH)
    names = tree / "harness/experiment/exercises.py"
    text = names.read_text()
    assert text.count("| Megatron,") == 1
    text = text.replace("| Megatron,", "| Megatron | Sequence,")
    last = "from harness.experiment.megatron import Megatron\n"
    names.write_text(text.replace(last, f"{last}from harness.experiment.sequence import Sequence\n"))
    launches = tree / "harness/launch/exercises/base.py"
    text, last = launches.read_text(), '    "OwnTraining": '
    assert text.count(last) == 1
    launches.write_text(text.replace(last, f'    "Sequence": "harness.launch.exercises.sequence:LAUNCH",\n{last}'))


def test_an_exercise_that_is_added_once_is_known_everywhere(tree: Path) -> None:
    with_a_fifth_exercise(tree)
    script = python(tree, "-m", "harness", "-e", "4", "--dry-run", "--", "--ring")
    assert " --ring " in script.replace("\n", " ") and "actckpt0-ring1" in script
    page = python(tree, "-m", "harness", "-e", "4", "--help")
    assert "--ring " in page and "blocks travel around a ring" in " ".join(page.replace("│", " ").split())
    assert "Exercise 4: sequence parallelism" in python(tree, "-m", "harness", "help", "launch")
    said = python(tree, "-c", ASKED_IN_PYTHON).splitlines()
    assert said == ["lesson [False, True] [70, 70]", "differs ['ring']"]
