"""A training of one's own that cannot start: one sentence that names the remedy, exit 2, and nothing is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.common.training_python import ask_python
from tests.launch.own_shared import Typed, a_python

TOLD = {"version": [3, 9, 1], "packages": {}, "modules": []}


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    for name in ("train.py", "pkg/__init__.py", "pkg/train.py", "data.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "train.sh").write_text("#!/bin/bash\n", encoding="utf-8")
    (tmp_path / "folder.py").mkdir()
    return Typed(tmp_path, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "trian.py"], "trian.py: there is no such script in {here}: did you mean train.py?"),
        (["--", "pkg/trian.py"], "did you mean pkg/train.py?"),
        (["--", "folder.py"], "folder.py is a folder"),
        (["--", "pkg"], "pkg is a folder: name a script in it, such as pkg/train.py"),
        (["--", "train.sh"], "train.sh is a shell script: say what runs it, as in -- bash train.sh"),
        (["--", "./train.sh"], "say what runs it, as in -- bash ./train.sh"),
        (["--", "data.txt"], "data.txt is not executable"),
        (["--", "trian"], "trian: there is no such program on PATH, and no such file in {here}: did you mean train"),
        (["--", "./trian"], "./trian: there is no such file: did you mean train"),
        (["--", "-m", "pkg.trian"], "-m pkg.trian: there is no such module in {here}: did you mean -m pkg.train?"),
        (["--", "-m", "pkg/train.py"], "a script is named without -m, as in -- pkg/train.py"),
        (["--"], "nothing comes after --: name your script there, as in slurm.sh run -g 2 -- train.py"),
        (["--", "-m"], "-m: a module's name comes after it"),
        (["--", "--lr", "1"], "--lr: it comes before your script"),
        (["train.py"], "run: name your script after --, as in slurm.sh run -g 2 -- train.py"),
        (["--launcher", "torchrun", "--", "bash", "x"], "bash is started as it is: drop one"),
        (["--launcher", "torchrnu", "--", "train.py"], "did you mean torchrun?"),
        (["--nsys-per", "rank", "--profiler", "nsys", "--", "bash"], "--nsys-per rank needs a launcher"),
        (["--python", "/nowhere/python", "--", "train.py"], "/nowhere/python does not exist"),
        (["--python", "/usr", "--", "train.py"], "/usr is a folder"),
        (["--python", "/bin/ls", "--", "train.py"], "/bin/ls is not a Python"),
        (["--mixed-precision", "--", "train.py"], "a flag of your own script comes after its name"),
        (["--fault", "checkpoint", "--", "train.py"], "in your own training use one of data-stall"),
        (["--nope", "--", "train.py"], "unknown flag --nope"),
    ],
)  # fmt: skip
def test_one_sentence_and_nothing_is_written(typed: Typed, words: list[str], said: str) -> None:
    before = typed.files()
    done = typed("run", *words)
    refusal = [line for line in done.stderr.splitlines() if line.startswith("slurm.sh: ")]
    assert (done.returncode, len(refusal), done.stdout) == (2, 1, "")
    assert said.format(here=typed.folder) in refusal[0]
    assert typed.files() == before


def test_run_without_a_script_says_how_one_is_typed(typed: Typed) -> None:
    assert "name your script after --, as in slurm.sh run -g 2 -- train.py" in typed("run").stderr


@pytest.mark.parametrize(
    ("told", "words", "said"),
    [
        ({"version": [3, 7, 9]}, ["--launcher", "torchrun"], "is Python 3.7.9, and a training is observed from"),
        ({"version": [2, 7, 18]}, [], "is Python 2.7.18"),
        ({}, ["-g", "2"], "has no torch, which torchrun needs"),
        ({"modules": ["torch"]}, ["--launcher", "deepspeed"], "has no deepspeed, which --launcher asks for"),
    ],
)  # fmt: skip
def test_a_python_that_cannot_train(
    typed: Typed, tmp_path: Path, told: dict[str, object], words: list[str], said: str
) -> None:
    python = a_python(tmp_path / f"bin/{abs(hash(said))}", json.dumps(TOLD | told))
    done = typed("run", "--python", python, *words, "--", "train.py")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_plain_script_without_pytorch_is_only_warned_of(typed: Typed, tmp_path: Path) -> None:
    python = a_python(tmp_path / "bin/plain", json.dumps(TOLD))
    done = typed("run", "--python", python, "--dry-run", "--", "train.py")
    assert done.returncode == 0
    assert f"warning: {python} has no PyTorch" in done.stderr


def test_of_a_python_that_is_typed_as_a_command_the_same_is_said(typed: Typed, tmp_path: Path) -> None:
    python = a_python(tmp_path / "bin/python3", json.dumps(TOLD))
    done = typed("run", "--dry-run", "--", python, "train.py")
    assert f"warning: {python} has no PyTorch" in done.stderr
    trains = a_python(tmp_path / "bin/python3.11", json.dumps(TOLD | {"modules": ["torch"]}))
    assert "has no PyTorch" not in typed("run", "--dry-run", "--", trains, "train.py").stderr


def test_a_module_of_the_site_may_bring_what_the_python_lacks(typed: Typed, tmp_path: Path) -> None:
    python = a_python(tmp_path / "bin/bare", json.dumps(TOLD))
    site = tmp_path / "site.yaml"
    site.write_text(json.dumps({"name": "x", "description": "x", "scheduler": "local", "modules": ["torch"]}))
    done = typed("run", "-g", "2", "--site", str(site), "--python", python, "--dry-run", "--", "train.py")
    assert "would stop here" not in done.stderr


def test_this_python_says_what_it_has() -> None:
    found = ask_python(sys.executable)
    assert not isinstance(found, str)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in found.packages


def test_a_dash_is_refused_before_the_script_alone(typed: Typed) -> None:
    done = typed("run", "\u2013g", "2", "--", "train.py", "\u2013lr", "a b")
    assert done.returncode == 2
    assert done.stderr.endswith(": type -g\n")
