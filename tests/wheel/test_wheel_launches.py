"""Where the wheel is installed and there is no checkout: everything that a checkout launches, by another name."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from harness.cli.commands import COMMANDS
from tests.waiting import limit_s
from tests.wheel.wheel_shared import ROOT, Installed

EVERY_HELP = """
from harness.cli.main import main
from harness.cli.commands import COMMANDS
for words in [[], ["help"], ["--help"], ["--help", "--all"], *(["help", name] for name in COMMANDS)]:
    assert main(words) == 0, words
"""


def test_from_nothing_to_the_first_answer_are_two_lines_and_no_git(installed: Installed, traces: list[Path]) -> None:
    """`pip install WHEEL` has made the environment; this is the second line."""
    assert installed("-c", "import shutil; print(shutil.which('git'))", program="python").stdout == "None\n"
    done = installed("report", traces[0].parent)
    assert done.returncode == 0, done.stderr
    assert "of 1.00 ms a step" in done.stdout


def test_the_installed_package_is_neither_the_checkouts_nor_does_it_see_what_is_not_declared(
    installed: Installed,
) -> None:
    code = "import harness, importlib.util as u; print(harness.__file__, u.find_spec('torch'), u.find_spec('pytest'))"
    said = installed("-c", code, program="python").stdout.split()
    assert said[1:] == ["None", "None"]
    assert Path(said[0]) == installed.package / "files" / "harness" / "__init__.py"
    assert ROOT not in Path(said[0]).parents


def test_its_version_says_where_it_is(installed: Installed) -> None:
    said = installed("--version").stdout.splitlines()
    assert said[0].startswith("training-traces ")
    assert said[1:] == [f"installed in {installed.package / 'files'}"]


def test_every_help_page_names_the_installed_command(installed: Installed) -> None:
    done = installed("-c", EVERY_HELP, program="python")
    assert done.returncode == 0, done.stderr
    assert "slurm.sh" not in done.stdout
    assert all(f"Usage: training-traces {name}" in done.stdout for name in COMMANDS if name != "run")
    assert "training-traces run [-n NODES]" in done.stdout


def test_every_document_that_a_help_page_names_is_there(installed: Installed) -> None:
    done = installed("-c", EVERY_HELP, program="python")
    named = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("More: ")]
    assert named
    assert all(Path(each).is_file() for each in named)


TRAINS_HERE = ["-e 1", "run -g 2 -- train.py", "lesson 1a --run", "sweep buckets --yes"]


@pytest.mark.parametrize("words", map(str.split, TRAINS_HERE), ids=TRAINS_HERE)
def test_without_the_training_packages_one_sentence_has_the_line_to_type(
    installed: Installed, words: list[str]
) -> None:
    (installed.folder / "train.py").write_text("print('trained')\n")
    before = installed.files()
    done = installed(*words)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "training packages" in last
    assert "pip install 'training-traces[train]'" in last
    assert installed.files() == before


def test_a_cluster_gets_a_script_that_names_only_what_is_installed(installed: Installed) -> None:
    done = installed("-e", "2", "-n", "2", "--site", "leonardo", "--dry-run", "--", "--mixed-precision")
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout
    named = set(re.findall(rf"{re.escape(str(installed.package))}[\w./-]*", done.stdout))
    assert {each.rpartition("/")[2] for each in named} >= {"files", "supervise.py", "node.py", "train.py"}
    assert all(Path(each).exists() for each in named)
    parsed = subprocess.run(
        ["bash", "-n"], input=done.stdout, text=True, check=False, capture_output=True, timeout=limit_s()
    )
    assert parsed.returncode == 0, parsed.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["sites"], "leonardo"),
        (["lesson"], "1a"),
        (["lesson", "1a", "--hint"], "Is the GPU waiting for data?"),
        (["sweep"], "training-traces sweep NAME"),
        (["reference", "show"], "cpu-miniatures"),
        (["reference", "record", "--dry-run", "--site", "leonardo"], "training-traces -e 1"),
        (["ls"], "start one: training-traces -e 1"),
        (["-e", "1", "--plan", "--site", "leonardo"], "memory"),
    ],
)
def test_what_students_and_instructors_type_works(installed: Installed, words: list[str], shown: str) -> None:
    done = installed(*words)
    assert shown in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert "slurm.sh" not in done.stdout + done.stderr


@pytest.mark.long  # as from a checkout, with the packages that pip finds here
@pytest.mark.train
def test_exercise_1_trains_in_the_current_folder_with_the_packages_of_the_tests(trainer: Installed) -> None:
    before = trainer.files()
    done = trainer("-e", "1", "-g", "2", "--", "--active-steps", "3")
    assert done.returncode == 0, done.stderr
    runs = trainer.folder / "exercises" / "exercise_1_DDP" / "profiler"
    (record,) = runs.glob("*/run.json")
    made = json.loads(record.read_text())
    assert made["command"][0] == "training-traces"
    assert made["versions"]["training-traces"]
    assert set(made["git"].values()) == {None}
    assert [each for each in trainer.files() if str(trainer.package) in each and each not in before] == []


WHOSE = """
import typer
from harness.common.paths import ROOT
from harness.heartbeats import collect
from harness.observe import lines
from harness.traces.python_functions import Owner, owner_of
for file in ("exercise_1_DDP/train.py", "utils/loaders.py", "utils/faults/inject.py", typer.__file__):
    path = str(ROOT / "exercises" / file)
    print(lines.is_users(path), collect.is_users(path), owner_of(path) is Owner.USER)
"""


def test_an_installed_exercise_is_the_users_program_and_no_package_of_others(installed: Installed) -> None:
    """So a line of it can be where time was lost; of the file that injects a fault none is, as in a checkout."""
    done = installed("-c", WHOSE, program="python")
    assert done.stdout.splitlines() == ["True True True", "True True True", "False False True", "False False False"]
