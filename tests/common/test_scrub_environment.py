"""A variable of the shell that spoils a run does so indeed, and is left behind with a sentence; others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.common.system.scrub_environment import NOT_PASSED, RULES, scrub_environment
from tests.waiting import limit_s

# Each variable, a value, and a command whose output or exit status that value changes.
SPOILS = {
    "PYTHONHOME": ("/nonexistent", [sys.executable, "-c", ""]),
    "PYTHONPLATLIBDIR": ("nowhere", [sys.executable, "-c", ""]),
    "PYTHONOPTIMIZE": ("1", [sys.executable, "-c", "assert False"]),
    "PYTHONINSPECT": ("1", [sys.executable, "-c", "raise SystemExit(3)"]),
    "PYTHONSAFEPATH": ("1", [sys.executable, "train.py"]),
    "PYTHONWARNINGS": ("error", [sys.executable, "-c", "import warnings; warnings.warn('soon')"]),
    "PYTHONIOENCODING": ("ascii", [sys.executable, "-c", "print('…')"]),
    "PYTHONDEVMODE": ("1", [sys.executable, "-c", "import sys; print(sys.flags.dev_mode)"]),
    "PYTHONMALLOC": ("malloc", [sys.executable, "-c", "import sys; print(sys.getallocatedblocks() > 0)"]),
    "PYTHONTRACEMALLOC": ("1", [sys.executable, "-c", "import tracemalloc as t; print(t.is_tracing())"]),
    "PYTHONMALLOCSTATS": ("1", [sys.executable, "-c", ""]),
    "PYTHONPROFILEIMPORTTIME": ("1", [sys.executable, "-c", ""]),
    "PYTHONVERBOSE": ("1", [sys.executable, "-c", ""]),
    "BASH_ENV": ("./leaves", ["bash", "-c", "true"]),
    "SHELLOPTS": ("noglob", ["bash", "-c", "echo *"]),
    "BASHOPTS": ("failglob", ["bash", "-c", "echo *.nothing"]),
    "POSIXLY_CORRECT": ("1", ["bash", "-c", "shopt -po posix"]),
    "CDPATH": ("elsewhere", ["bash", "-c", "cd here; pwd"]),
}
# What cannot spoil a run, or is meant: the first value is kept.
STAYS = {
    "PYTHONWARNINGS": "ignore,default::UserWarning",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUSERBASE": "/scratch/me",
    "PYTHONSTARTUP": "/home/me/.pythonrc",
    "PYTHONPATH": "/home/me/lib",
    "BASH_ENV": "/usr/share/lmod/lmod/init/bash",
    "ENV": "/home/me/.shinit",
    "IFS": "x",
    "GLOBIGNORE": "*",
    "GREP_OPTIONS": "--color=always",
    "LD_PRELOAD": "/opt/darshan/lib/libdarshan.so",
}


def outcome(argv: list[str], folder: Path, **variable: str) -> tuple[int, str]:
    names = {rule.name for rule in RULES}
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        argv, cwd=folder, env={**clean, **variable}, stdin=subprocess.DEVNULL, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", timeout=limit_s(),
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("environment")
    (made / "train.py").write_text("import neighbour\n")
    (made / "neighbour.py").write_text("")
    (made / "leaves").write_text("exit 3\n")
    (made / "here").mkdir()
    (made / "elsewhere" / "here").mkdir(parents=True)
    return made


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_what_is_left_behind_would_spoil_a_run(name: str, folder: Path) -> None:
    if name == "PYTHONSAFEPATH" and sys.version_info < (3, 11):
        pytest.skip("this Python does not know it")
    value, argv = SPOILS[name]
    assert outcome(argv, folder, **{name: value}) != outcome(argv, folder)
    environ = {name: value, "HOME": "/home/me"}
    (sentence,) = scrub_environment(environ)
    assert sentence.startswith(f"{name} of your shell is not passed to the job: ")
    assert environ == {"HOME": "/home/me"}


@pytest.mark.parametrize("name", STAYS)
def test_what_spoils_nothing_stays(name: str) -> None:
    environ = {name: STAYS[name]}
    assert scrub_environment(environ) == []
    assert environ == {name: STAYS[name]}


def test_a_sites_module_system_keeps_its_bash_env() -> None:
    environ = {"BASH_ENV": "/apps/lmod/8.7/init/bash", "LMOD_PKG": "/apps/lmod/8.7"}
    assert scrub_environment(environ) == []
    assert "BASH_ENV" in environ


def test_what_slurm_sh_left_behind_is_said_too() -> None:
    environ = {NOT_PASSED: "POSIXLY_CORRECT cd()"}
    option, function = scrub_environment(environ)
    assert option.startswith("POSIXLY_CORRECT of your shell")
    assert function.startswith("cd() of your shell is not passed to the job: ")
    assert environ == {}
