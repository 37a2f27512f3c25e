"""`run [FLAGS] -- SCRIPT …`: what is the launcher's, what is the script's, and which programs a node starts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness.cli.command import read_launch
from harness.cli.launch.launch import request_of
from harness.experiment.exercises import OwnTraining
from harness.experiment.parse import command_of
from harness.launch.argv import quote_all, shown
from harness.launch.exercises.own import OBSERVER
from harness.launch.render import render
from harness.site.site import Site
from tests.launch.launch_shared import exported
from tests.launch.own_shared import HERE, LAPTOP, Typed, job_of, own
from tests.waiting import limit_s

HOSTILE = ["-e", "1", "--", "--help", "-n", "4", "$(touch evil)", "`x`", "it's", "", "a\nb", "*", "\\", "–x"]


@pytest.fixture
def typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    (tmp_path / "train.py").touch()
    return Typed(tmp_path, capsys)


def asked_by(*words: str) -> OwnTraining:
    experiment, _ = request_of(read_launch(["--site", "local", *words], is_run=True))
    assert isinstance(experiment, OwnTraining)
    return experiment


def argv_of(asked: OwnTraining, **site: object) -> list[str]:
    (command,) = job_of(asked, HERE.model_copy(update=site)).commands
    return [shown(word) for word in command.argv]


def test_all_behind_the_dashes_is_the_scripts_whatever_it_looks_like() -> None:
    assert asked_by("-g", "2", "--", "train.py", *HOSTILE).command == ("train.py", *HOSTILE)


@pytest.mark.parametrize(
    ("words", "form", "label"),
    [
        (("train.py", "x"), "script", "train"),
        (("src/my run.py",), "script", "my run"),
        (("-m", "package.train"), "module", "train"),
        (("bash", "train.sh"), "command", "bash"),
        (("/opt/bin/go",), "command", "go"),
    ],
)
def test_the_first_word_says_what_it_is(words: tuple[str, ...], form: str, label: str) -> None:
    assert (own(*words).form, own(*words).label) == (form, label)


def test_a_run_is_named_after_the_script_in_safe_characters() -> None:
    job = job_of(own("a b/It's .. *.py", gpus_per_node=2))
    assert job.name_for("7") == "It_s-7-n1-g2"


def test_one_rank_is_started_plainly() -> None:
    node = ["env", "NNODES=1", "NODE_RANK=%q{SLURM_NODEID}"]
    assert argv_of(own("train.py", "--lr", "1")) == [*node, "/harness/python", "train.py", "--lr", "1"]


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed"])
def test_a_launcher_has_a_flag_for_a_module(launcher: str) -> None:
    words = argv_of(own("-m", "pkg.train", "--lr", "1", gpus_per_node=2, launcher=launcher))
    assert words[0] == f"/harness/{launcher}", "by its own name, beside the Python that it is of"
    assert words[-4:] == ["--module", "pkg.train", "--lr", "1"]


def test_only_the_observer_is_on_the_path_and_what_the_user_has_stays() -> None:
    env = job_of(own("train.py")).env
    assert shown(env["PYTHONPATH"]) == f"{OBSERVER}$PYTHONPATH"
    script = render(job_of(own("train.py"), HERE.model_copy(update={"env": {"PYTHONPATH": "/of/site"}})))
    assert f'PYTHONPATH="{OBSERVER}:/of/site${{PYTHONPATH:+:${{PYTHONPATH}}}}"' in exported(script)
    assert any(each.startswith('OMP_NUM_THREADS="${OMP_NUM_THREADS:-') for each in exported(script))


def test_the_observer_is_told_the_window_and_the_faults() -> None:
    asked = own("train.py", active_steps=3, faults=("pause,ms=5",), gpus_per_node=2)
    told = json.loads(job_of(asked).files["observe.json"])
    assert told["window"] == {"skip": 5, "wait": 0, "warmup": 2, "active": 3}
    assert (told["profiler"], told["faults"]) == ("torch", ["pause,ms=5"])


CONTAINER = {"runtime": "apptainer", "image": "/images/training.sif"}


def test_in_the_sites_container_it_sees_its_folders_and_with_a_python_of_ones_own_there_is_none() -> None:
    site = Site.model_validate({"name": "x", "description": "x", "device": "cpu", "container": CONTAINER})
    asked = own("../lib/train.py", gpus_per_node=2)
    job = job_of(asked, site)
    binds = [shown(job.container[i + 1]) for i, word in enumerate(job.container) if word == "--bind"]
    assert {"/home/u", "/home/u/../lib"} <= set(binds)
    assert argv_of(asked, container=site.container)[0] == "torchrun", "that of the image"
    alone = job_of(asked.model_copy(update={"python": "/venv/bin/python"}), site)
    assert (alone.container, alone.site.container) == ([], None)
    assert shown(alone.commands[0].argv[0]) == "/venv/bin/python"


def test_the_environment_that_is_active_trains(typed: Typed, tmp_path: Path) -> None:
    typed_with = typed("run", "--json", "--dry-run", "--", "train.py", VIRTUAL_ENV=str(tmp_path / "venv"))
    assert json.loads(typed_with.stdout)["experiment"]["python"] == f"{tmp_path}/venv/bin/python"
    conda = typed("run", "--json", "--dry-run", "--", "train.py", CONDA_PREFIX="/conda")
    assert json.loads(conda.stdout)["experiment"]["python"] == "/conda/bin/python"


@pytest.mark.parametrize("words", [["train.py", *HOSTILE], ["-m", "pkg.train"], ["bash", "-c", "x"]])
def test_the_command_of_a_request_asks_for_it_again(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    asked = asked_by("-n", "2", "--skip-steps", "1", "--fault", "pause,ms=3", "--", *words)
    again = command_of(asked)
    assert again is not None
    assert again[0] == "run"
    assert asked_by(*again[1:]) == asked


def test_the_scripts_words_reach_it_through_the_shell(tmp_path: Path) -> None:
    """Each hostile word as it was typed, in a folder with a hostile name."""
    folder = tmp_path / 'it\'s $(touch evil) "x"\nnew line'
    folder.mkdir()
    (command,) = job_of(own("printf", r"%s\0", *HOSTILE, start_in=str(folder))).commands
    inside = f'cd -- "$1" && {quote_all(command.argv)}'
    done = subprocess.run(
        ["bash", "-c", inside, "x", str(folder)], capture_output=True, text=True, check=True, timeout=limit_s()
    )
    assert done.stdout.split("\0")[:-1] == HOSTILE
    assert list(folder.iterdir()) == []
    assert LAPTOP.own_runs_dir in render(job_of(own("train.py", start_in=str(folder))))
