"""A training of one's own that cannot start: one sentence that names the remedy, exit 2, and nothing is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.common.system.training_python import ask_python
from tests.launch.own_shared import Typed, a_python

TOLD = {"version": [3, 9, 1], "packages": {}, "modules": []}
BARE = "{here}/bin/bare"  # a Python without PyTorch


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    for name in ("train.py", "pkg/__init__.py", "pkg/train.py", "data.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.py").mkdir()
    pythons: dict[str, dict[str, Any]] = {
        "bare": {}, "old": {"version": [3, 7, 9]}, "two": {"version": [2, 7, 18]}, "torch": {"modules": ["torch"]},
    }  # fmt: skip
    for name, told in pythons.items():
        a_python(tmp_path / "bin" / name, json.dumps(TOLD | told))
    return Typed(tmp_path, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "trian.py"], "trian.py: there is no such script in {here}: did you mean train.py?"),
        (["--", "pkg/trian.py"], "did you mean pkg/train.py?"),
        (["--", "folder.py"], "folder.py is a folder: name a script in it"),
        (["--", "pkg"], "pkg is a folder: name a script in it"),
        (["--", "data.txt"], "data.txt is not executable: say what runs it, as in -- bash data.txt"),
        (["--", "./data.txt"], "say what runs it, as in -- bash ./data.txt"),
        (["--", "trian"], "trian: there is no such program on PATH or file in {here}: did you mean train.py?"),
        (["--", "-m", "pkg.trian"], "-m pkg.trian: there is no such module in {here}"),
        (["--", "-m", "pkg/train.py"], "-m pkg/train.py: is not the name of a module"),
        (["--"], "nothing comes after --: name your script there, as in bash slurm.sh run -g 2 -- train.py"),
        (["--", "-m"], "-m: a module's name comes after it"),
        (["--", "--lr", "1"], "--lr: it comes before your script"),
        (["train.py"], "run: name your script after --, as in bash slurm.sh run -g 2 -- train.py"),
        ([], "run: name your script after --, as in bash slurm.sh run -g 2 -- train.py"),
        (["\u2013g", "2", "--", "train.py", "\u2013lr", "a b"], "this is another dash: type -g"),
        (["--launcher", "torchrun", "--", "bash", "x"], "bash is started as it is: drop one"),
        (["--memory", "--profiler", "torch", "--", "a.py"], "--memory and --profiler torch would each be in the other"),
        (["--launcher", "torchrnu", "--", "train.py"], "did you mean torchrun?"),
        (["--accelerate-config", "x.yaml", "--", "train.py"], "a file of --launcher accelerate: add that"),
        (["--nsys-per", "rank", "--profiler", "nsys", "--", "bash"], "--nsys-per rank needs a launcher"),
        (["--python", "/nowhere/python", "--", "train.py"], "/nowhere/python does not exist"),
        (["--python", "/usr", "--", "train.py"], "/usr is a folder"),
        (["--python", "/bin/ls", "--", "train.py"], "/bin/ls is not a Python"),
        (["--python", "{here}/bin/old", "--launcher", "torchrun", "--", "train.py"], "is Python 3.7.9, and a training"),
        (["--python", "{here}/bin/two", "--", "train.py"], "is Python 2.7.18"),
        (["--python", BARE, "-g", "2", "--", "train.py"], "has no torch, which torchrun needs"),
        (["--python", "{here}/bin/torch", "--launcher", "deepspeed", "--", "train.py"], "has no deepspeed, which --l"),
        (["--mixed-precision", "--", "train.py"], "a flag of your own script comes after its name"),
        (["--fault", "checkpoint", "--", "train.py"], "in your own training use one of data-stall"),
        (["--nope", "--", "train.py"], "unknown flag --nope"),
    ],
)  # fmt: skip
def test_one_sentence_and_nothing_is_written(typed: Typed, words: list[str], said: str) -> None:
    before = typed.files()
    done = typed("run", *(word.format(here=typed.folder) for word in words))
    refusal = [line for line in done.stderr.splitlines() if line.startswith("slurm.sh: ")]
    assert (done.returncode, len(refusal), done.stdout) == (2, 1, "")
    assert said.format(here=typed.folder) in refusal[0]
    assert typed.files() == before


def test_a_module_of_the_site_may_bring_what_the_python_lacks(typed: Typed, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(json.dumps({"name": "x", "description": "x", "scheduler": "local", "modules": ["torch"]}))
    words = ("-g", "2", "--site", str(site), "--python", BARE.format(here=tmp_path), "--dry-run", "--", "train.py")
    assert "would stop here" not in typed("run", *words).stderr


def test_this_python_says_what_it_has() -> None:
    found = ask_python(sys.executable)
    assert not isinstance(found, str)
    assert found.version == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in found.packages
