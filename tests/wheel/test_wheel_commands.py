"""Where the wheel is installed and there is no checkout: every command of a checkout works, by another name."""

from __future__ import annotations

import gzip
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
for words in [[], ["help"], ["--help"], ["help", "launch", "--all"], *(["help", name] for name in COMMANDS)]:
    assert main(words) == 0, words
"""
WHERE = """
import importlib.util, shutil, harness
print(harness.__file__, *map(importlib.util.find_spec, ("torch", "pytest")), shutil.which("git"))
"""
WHOSE = """
import typer
from harness.common.paths import ROOT
from harness.heartbeats import collect
from harness.observe import lines
from harness.traces.python_functions import Owner, owner_of
passed_over = ("utils/faults/inject.py", "exercise_3_MegatronLM/hooks.py")
for file in ("exercise_1_DDP/train.py", "utils/loaders.py", *passed_over, typer.__file__):
    path = str(ROOT / "exercises" / file)
    print(lines.is_users(path), collect.is_users(path), owner_of(path) is Owner.USER)
"""
TRAINING = "pip install '.[train]'  # in the checkout"


def test_the_installed_package_is_neither_the_checkouts_nor_does_it_see_what_is_not_declared(
    installed: Installed,
) -> None:
    place, *seen = installed("-c", WHERE, program="python").stdout.split()
    assert seen == ["None"] * 3, "PyTorch, pytest, git"
    assert Path(place) == installed.package / "files" / "harness" / "__init__.py"
    assert ROOT not in Path(place).parents
    said = installed("--version").stdout.splitlines()
    assert said[0].startswith("training-traces ")
    assert said[1:] == [f"installed in {installed.package / 'files'}"]
    empty = installed("ls")
    assert "start one: training-traces -e 1" in empty.stdout + empty.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("sites", "leonardo"),
        ("lesson", "1a"),
        ("lesson 1a --hint", "Is the GPU waiting for data?"),
        ("sweep", "training-traces sweep NAME"),
        ("reference show", "cpu-miniatures"),
        ("reference record --dry-run --site leonardo", "training-traces -e 1"),
        ("-e 1 --plan --site leonardo", "memory"),
        ("report traces --full --html page.html", "gemm bf16"),  # of configs/kernels.yaml
        ("report last --no-html", "of 1.00 ms a step"),
        ("report a-run --no-html", "of 1.00 ms a step"),
        ("compare traces/rank0.json traces/rank1.json --html compare.html", "Step time, mean over ranks"),
        ("export csv traces -o tables", "tables"),
        ("export perfetto traces/rank0.json traces/rank1.json --out merged", "merged"),
        ("export paraver traces/rank0.json traces/rank1.json --out merged", "views to open with it: "),
    ],
)
def test_what_is_typed_works_and_names_the_installed_command(there: Installed, words: str, shown: str) -> None:
    done = there(*words.split())
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout + done.stderr
    assert "slurm.sh" not in done.stdout + done.stderr
    named = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if "views to open" in line]
    assert all(list(Path(each).parent.glob("*.cfg")) for each in named), "the views are where it says"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("report nowhere", "there is no run 'nowhere'"),
        ("repor", "report"),
        ("-e 1", TRAINING),
        ("run -g 2 -- train.py", TRAINING),
        ("lesson 1a --run", TRAINING),
        ("sweep buckets --yes", TRAINING),
    ],
)
def test_a_refusal_has_only_advice_that_can_be_followed_here_and_writes_nothing(
    there: Installed, words: str, shown: str
) -> None:
    (there.folder / "train.py").write_text("print('trained')\n")
    before = there.files()
    done = there(*words.split())
    assert done.returncode == 2
    assert shown in done.stderr.splitlines()[-1]
    assert "slurm.sh" not in done.stdout + done.stderr
    assert there.files() == before


@pytest.fixture
def there(installed: Installed, traces: list[Path]) -> Installed:
    """A folder with the traces of two ranks, also as a run."""
    run = installed.folder / "exercises" / "exercise_1_DDP" / "profiler" / "a-run"
    (run / "torch").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (installed.folder / "traces").mkdir()
    for trace in traces:
        (run / "torch" / f"{trace.name}.gz").write_bytes(gzip.compress(trace.read_bytes()))
        (installed.folder / "traces" / trace.name).write_bytes(trace.read_bytes())
    return installed


def test_every_help_page_names_the_installed_command_and_documents_that_are_there(installed: Installed) -> None:
    done = installed("-c", EVERY_HELP, program="python")
    assert done.returncode == 0, done.stderr
    assert "slurm.sh" not in done.stdout
    assert all(f"Usage: training-traces {name}" in done.stdout for name in COMMANDS if name != "run")
    assert "Usage: training-traces run " in done.stdout
    named = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("More: ")]
    assert named and all(Path(each).is_file() for each in named)


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


def test_an_installed_exercise_is_the_users_program_and_no_package_of_others(installed: Installed) -> None:
    """So a line of it can be where time was lost; of the file that injects a fault none is, as in a checkout."""
    done = installed("-c", WHOSE, program="python")
    assert done.stdout.splitlines() == ["True True True"] * 2 + ["False False True"] * 2 + ["False False False"]
