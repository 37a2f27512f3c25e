"""The command itself: it refuses wrong requests, survives a step that dies, names what is missing, and continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package, as on a machine that has nothing yet."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return folder / "bin" / "python"


class Ran:
    """One start of the command."""

    def __init__(self, python: Path | str, *words: str | Path) -> None:
        environment = {**os.environ, "HARNESS_PYTHON": str(python)}
        argv = ["bash", str(ROOT / "scripts" / "gpu-acceptance"), *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=120)
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


def steps_of(out: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((out / "acceptance.json").read_text(encoding="utf-8"))
    return {step["step"]: step for step in document["steps"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the folder"),
        (("{out}", "--only", "trainings"), "--only trainings: there is no such step; there are inventory, training"),
        (("{out}", "--only", ","), "--only: name a step"),
        (("{out}", "--budget", "1"), "--budget 1: give at least 5 seconds"),
        (("{file}/out",), "cannot be made (Not a directory)"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_writes_nothing(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    out, file = tmp_path / "out", tmp_path / "file"
    file.touch()
    ran = Ran(sys.executable, *(word.format(out=out, file=file) for word in words))
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert not out.exists()


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin/false"])
def test_a_file_that_is_no_python_is_named(python: str) -> None:
    ran = Ran(python, "--list")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"gpu-acceptance: {python} is not a Python 3.10 or newer: name one in HARNESS_PYTHON.\n"


def test_the_list_names_every_step_and_needs_no_package(bare_python: Path) -> None:
    ran = Ran(bare_python, "--list")
    assert (ran.code, ran.err) == (0, "")
    names = [line.split()[0] for line in ran.out.splitlines()]
    assert names == [
        *("inventory", "training", "monitor", "reports", "traces"),
        *("others", "compiled", "nsys", "faults"),
    ]


def test_a_machine_without_packages_gets_the_one_command_that_installs_them(bare_python: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = Ran(bare_python, out, "--work", tmp_path / "work", "--only", "inventory,training,reports")
    assert ran.code == 0, ran.out + ran.err
    steps = steps_of(out)
    assert [steps[name]["state"] for name in ("inventory", "training", "reports")] == ["done", "lacks", "lacks"]
    (missing,) = (check for check in steps["inventory"]["checks"] if check["name"] == "packages")
    listed, _, command = missing["said"].partition(": bring their wheels in a folder WHEELS; ")
    assert command.startswith("python3 -m pip install --no-index --no-deps --target FOLDER WHEELS/*.whl")
    assert "torch==" in listed and "pydantic>=" in listed
    assert "pydantic-core" in listed or "pydantic_core" in listed, "what pydantic itself needs"
    assert "the packages torch, accelerate" in steps["training"]["reason"]
    assert {path.name for path in out.iterdir()} == {"acceptance.json", "acceptance.html", "acceptance.log"}


def test_a_second_start_goes_on_and_repeats_only_on_request(bare_python: Path, tmp_path: Path) -> None:
    words = (tmp_path / "out", "--work", tmp_path / "work", "--only", "inventory")
    assert "done before" not in Ran(bare_python, *words).out
    first = steps_of(tmp_path / "out")["inventory"]
    assert "inventory: done before" in Ran(bare_python, *words).out
    assert steps_of(tmp_path / "out")["inventory"] == first
    assert "done before" not in Ran(bare_python, *words, "--again").out


def test_a_step_without_time_is_not_begun(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = Ran(sys.executable, out, "--work", tmp_path / "work", "--only", "training", "--budget", "10")
    assert ran.code == 1
    assert "training: not yet in 0 s: no time left: it needs 20 s and more" in ran.out
    assert "the same command continues there" in ran.out


def test_a_step_that_dies_fails_alone(bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "csv.py").write_text("import os\nos._exit(9)\n")  # which step monitor alone imports
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "out"
    ran = Ran(bare_python, out, "--work", tmp_path / "work", "--only", "monitor,reports")
    assert ran.code == 1, ran.out + ran.err
    steps = steps_of(out)
    assert (steps["monitor"]["state"], steps["reports"]["state"]) == ("failed", "lacks")
    assert "ended without a result" in steps["monitor"]["reason"]
    assert "not done: monitor;" in ran.out


def test_a_step_whose_result_cannot_be_written_fails_alone(bare_python: Path, tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "work"
    (work / "results" / "inventory.json").mkdir(parents=True)
    ran = Ran(bare_python, out, "--work", work, "--only", "inventory,reports")
    assert ran.code == 1, ran.out + ran.err
    steps = steps_of(out)
    assert (steps["inventory"]["state"], steps["reports"]["state"]) == ("failed", "lacks")
    assert "inventory.json" in steps["inventory"]["reason"]
