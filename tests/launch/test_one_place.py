"""A new exercise is its two modules and its line in two lists; a new flag of an exercise is one field of its class.

Each is added to a copy of harness/, as a developer adds it, and then used on the command line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
FLAG = """
    flat_buckets: bool = switch("--flat-buckets", tag="flat", tag_if_on=True, train="--flat-buckets").option(
        False, "gradients lie in one flat buffer"
    )
"""
# A lesson on the new field, the runs that can answer it, and a comparison of two runs.
ASKED_IN_PYTHON = """
import sys
from harness.compare.summaries import settings
from harness.analysis.summary import Summary
from harness.experiment.exercises import EXERCISES
from harness.study.lessons import ExperimentPair, at_site

cls, field = EXERCISES[int(sys.argv[1])], sys.argv[2]
pair = at_site(ExperimentPair(a=cls(), b=cls(**{field: True})), {"steps": 70, field: True})
print("lesson", [getattr(arm, field) for arm in (pair.a, pair.b)], [arm.steps for arm in (pair.a, pair.b)])
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


def with_a_flag_of_ddp(tree: Path) -> None:
    module = tree / "harness/experiment/ddp.py"
    text = module.read_text()
    before = "    slow_dataloading: bool = switch("
    assert text.count(before) == 1
    module.write_text(text.replace(before, f"{FLAG.lstrip(chr(10))}{before}"))


class Added(NamedTuple):
    """A change of the harness, and its effects."""

    change: Callable[[Path], None]
    exercise: str
    flag: str
    field: str
    tag: str
    meaning: str


ADDED = [
    Added(with_a_fifth_exercise, "4", "--ring", "ring", "ring", "blocks travel around a ring"),
    Added(with_a_flag_of_ddp, "1", "--flat-buckets", "flat_buckets", "flat", "gradients lie in one flat buffer"),
]


@pytest.mark.parametrize("added", ADDED, ids=["exercise", "flag"])
def test_what_is_added_once_is_known_everywhere(tree: Path, added: Added) -> None:
    added.change(tree)
    exercise, flag, meaning = added.exercise, added.flag, added.meaning
    script = python(tree, "-m", "harness", "-e", exercise, "--dry-run", "--", flag)
    assert f" {flag} " in script.replace("\n", " ")
    assert f"actckpt0-{added.tag}1" in script
    page = python(tree, "-m", "harness", "--help")
    assert f"{flag} " in page and meaning in " ".join(page.split())
    said = python(tree, "-c", ASKED_IN_PYTHON, exercise, added.field)
    assert said.splitlines() == ["lesson [False, True] [70, 70]", f"differs ['{added.field}']"]
    assert exercise != "4" or "Exercise 4: sequence parallelism:" in page
