"""`--script` trains with a student's own script: from the exercise's folder or from anywhere, on every kind of site."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.common.errors import RequestError
from harness.experiment.exercises import DDP
from harness.launch.argv import shown
from harness.launch.before.check import check
from harness.launch.job import Job, Machine, resolve
from harness.site.site import Site, load_site
from tests.launch.launch_shared import ROOT, with_whole_paths

FOLDER = ROOT / "exercises/exercise_1_DDP"


def job(machine: Machine, script: str, site: str = "leonardo") -> Job:
    return resolve(with_whole_paths(DDP(script=script)), load_site(site), machine)


def trained_with(found: Job) -> str:
    """The script in the argv of the training."""
    return next(word for word in map(shown, found.commands[0].argv) if word.endswith(".py"))


@pytest.mark.parametrize("site", ["leonardo", "local"])
def test_a_script_of_the_exercises_folder_trains_in_the_place_of_train_py(machine: Machine, site: str) -> None:
    own, other = resolve(DDP(), load_site(site), machine), job(machine, "train_todo.py", site)
    assert trained_with(own) == str(FOLDER / "train.py")
    assert trained_with(other) == str(FOLDER / "train_todo.py")
    assert other.container == own.container
    assert other.run_name[1] == f"{own.run_name[1]}-scripttrain_todo"


def test_the_folder_is_looked_into_from_everywhere_and_its_path_means_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for typed in ("train_todo.py", str(FOLDER / "train_todo.py")):
        assert with_whole_paths(DDP(script=typed)) == DDP(script="train_todo.py")
    for typed in ("train.py", str(FOLDER / "train.py")):
        assert with_whole_paths(DDP(script=typed)) == DDP()
    (tmp_path / "mine.py").touch()
    assert with_whole_paths(DDP(script="mine.py")) == DDP(script=str(tmp_path / "mine.py"))


def test_a_script_from_elsewhere_is_seen_inside_the_container(machine: Machine, tmp_path: Path) -> None:
    mine = tmp_path / "a b" / "my train.py"
    mine.parent.mkdir()
    mine.touch()
    found = job(machine, str(mine))
    assert trained_with(found) == str(mine)
    words = [shown(word) for word in found.container]
    assert str(mine.parent) in [words[i + 1] for i, word in enumerate(words) if word == "--bind"]
    assert found.run_name[1].endswith("-scriptmy_train")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trian_todo.py", "does not exist; give a path, or one of the exercise's own (train.py, train_todo.py): did"),
        ("README.md", "README.md is not a Python file (*.py)"),
        ("/nowhere/train.py", "--script: /nowhere/train.py does not exist"),
        (".", "exists but is not a file"),
    ],
)  # fmt: skip
def test_a_script_that_is_not_there_is_one_sentence(machine: Machine, name: str, said: str) -> None:
    here = Site(name="x", description="x", device="cpu", profiler="torch")
    with pytest.raises(RequestError) as caught:
        check(resolve(with_whole_paths(DDP(script=name)), here, machine), {})
    (line,) = (line for line in str(caught.value).splitlines() if "--script" in line)
    assert said in line


@pytest.mark.parametrize("name", ["train_todo.py", "train.py"])
def test_a_name_that_is_here_and_in_the_exercises_folder_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).touch()
    here, theirs = tmp_path / name, FOLDER / name
    for place, typed, script in ((tmp_path, f"./{name}", here), (tmp_path, theirs, theirs), (FOLDER, name, theirs)):
        monkeypatch.chdir(place)
        assert main(["-e", "1", "--site", "local", "--dry-run", "--script", str(typed)]) == 0
        assert f"\n  {script}\n" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["-e", "1", "--site", "local", "--dry-run", "--script", name]) == 2
    said = f"there is one here and one in the exercise's folder: give ./{name} for yours, or {theirs}\n"
    assert capsys.readouterr().err.endswith(f"--script {name}: {said}")
