"""Which Python makes .venv: the one that was asked for, else whatever the machine has, else one sentence."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import Checkout


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


@pytest.fixture
def old(bare: Checkout) -> Checkout:
    """As many clusters: the Python on PATH is too old."""
    program(Path(bare.environment["PATH"]) / "python3", "#!/bin/sh\nexit 1\n")
    return Checkout(bare.root, {k: v for k, v in bare.environment.items() if k != "HARNESS_PYTHON"})


@pytest.mark.parametrize(
    ("asked", "code", "sentence"),
    [
        ("/no/such/python", 2, "HARNESS_PYTHON=/no/such/python is no Python 3.10 or newer with venv (python3-venv)."),
        ("python3", 2, "HARNESS_PYTHON=python3 is no Python 3.10 or newer with venv (python3-venv)."),
        ("", 1, "no Python 3.10 or newer with venv is here: load a module with one, or set HARNESS_PYTHON."),
    ],
)
def test_without_a_python_that_is_new_enough_one_sentence_says_what_is_needed(
    old: Checkout, asked: str, code: int, sentence: str
) -> None:
    answer = old.run("-e", "1", HARNESS_PYTHON=asked)
    assert (answer.code, answer.stderr) == (code, f"slurm.sh: {sentence}\n")


SHIM = f"""#!/usr/bin/env bash
set -e
[ -n "$PYENV_DEBUG" ] && set -x
cd "{{0}}"
[ -f *.here ] || exit 5
exec "{sys.executable}" "$@"
"""
OF_THE_SHELL = {"SHELLOPTS": "noglob", "BASHOPTS": "failglob", "BASH_FUNC_python3%%": "() { return 8; }"}
OF_THE_SHELL |= {"BASH_FUNC_cd%%": "() { return 9; }"}


def test_a_shim_of_pyenv_is_a_python_whatever_the_shell_exports(old: Checkout, tmp_path: Path) -> None:
    """A shim is a bash script, and inherits what the user's shell exports to slurm.sh."""
    (tmp_path / "one.here").touch()
    program(tmp_path / "bin" / "python3", SHIM.format(tmp_path))
    leaves = program(tmp_path / "leaves", "case $0 in *python3) exit 9 ;; esac\n")
    assert old.run("status", BASH_ENV=str(leaves), **OF_THE_SHELL).said["alpha"]


@pytest.mark.parametrize("named", [True, False])
def test_the_module_of_the_named_site_brings_one_else_that_of_any_site(
    old: Checkout, tmp_path: Path, named: bool
) -> None:
    """And it is started with what it needs, also after a refresh."""
    program(tmp_path / "modules" / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    text = (old.root / "configs" / "sites" / "leonardo.yaml").read_text()
    theirs = next(line.split()[1] for line in text.splitlines() if line.startswith("python_module:"))
    module = f"""() {{ [ "$*" = "load {"python/9.9" if named else theirs}" ] || return 1
        export PATH='{tmp_path}/modules':$PATH LD_LIBRARY_PATH='/opt/my python/lib'; }}"""
    (tmp_path / "my-site.yaml").write_text("name: mine\npython_module: python/9.9   # a comment\n")
    words = ["status", "--site", str(tmp_path / "my-site.yaml")] if named else ["status"]
    answer = old.run(*words, **{"BASH_FUNC_module%%": module})
    assert answer.code == 0, answer.stderr
    old.depend_on("tiny-beta")
    assert old.run("status", HARNESS_PYTHON=sys.executable).said["beta"]
    assert "LD_LIBRARY_PATH='/opt/my python/lib'" in (old.venv / "harness-python").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages of the system")
def test_roots_debian_is_asked_for_a_python(old: Checkout, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "apt-get", f'#!/bin/sh\necho "$*" >>"{tmp_path}/words"\necho E: no network; exit 100\n')
    said = old.run("status").stderr
    assert "installing Debian's python3-venv with apt-get" in said and "apt-get: E: no network" in said
    assert "install python3 python3-venv" in (tmp_path / "words").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages of the system")
def test_the_python_that_debian_brings_is_used(old: Checkout, tmp_path: Path) -> None:
    program(tmp_path / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program(tmp_path / "bin" / "apt-get", f'#!/bin/sh\nexec /bin/mv "{tmp_path}/python3" "{tmp_path}/bin"\n')
    assert old.run("status").code == 0
