"""Which Python makes .venv: the one that was asked for, else whatever the machine has, else one sentence."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import NOBODY, Checkout, make_checkout

TOOLS = ("bash", "sh", "cat", "dirname", "env", "grep", "mkdir", "readlink", "sed", "timeout", "tr")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def old_python(path: Path) -> Path:
    return program(path, '#!/bin/sh\n[ "$1" != --version ] || { echo Python 3.6.8; exit 0; }\nexit 3\n')


@pytest.fixture
def bare_path(tmp_path: Path, uv_folder: Path) -> Path:
    """A PATH with the shell's tools, uv, and a Python that is too old, as many clusters' own is."""
    folder = tmp_path / "bin"
    old_python(folder / "python3")
    (folder / "uv").symlink_to(uv_folder / "uv")
    for tool in TOOLS:
        where = shutil.which(tool)
        assert where, tool
        (folder / tool).symlink_to(where)
    return folder


@pytest.fixture
def bare(checkout: Checkout, bare_path: Path) -> Checkout:
    environment = {k: v for k, v in checkout.environment.items() if k != "HARNESS_PYTHON"}
    return Checkout(checkout.root, environment | {"PATH": str(bare_path)})


def site_file(folder: Path, text: str) -> str:
    path = folder / "my-site.yaml"
    path.write_text(f"name: mine\ndescription: test\n{text}")
    return str(path)


@pytest.mark.parametrize(
    ("asked", "code", "sentence"),
    [
        ("/no/such/python", 2, "HARNESS_PYTHON=/no/such/python: there is no such program."),
        ("{old}", 2, "is Python 3.6.8; the harness needs Python 3.10 or newer."),
        ("", 1, "no Python 3.10 or newer is here: load a module that has one, or set HARNESS_PYTHON to its path."),
    ],
)
def test_without_a_python_that_is_new_enough_one_sentence_says_what_is_needed(
    bare: Checkout, bare_path: Path, asked: str, code: int, sentence: str
) -> None:
    answer = bare.run("-e", "1", HARNESS_PYTHON=asked.replace("{old}", str(bare_path / "python3")))
    assert answer.code == code
    (line,) = answer.stderr.splitlines()
    assert line.startswith("slurm.sh: ") and line.endswith(sentence)


def test_an_old_python3_does_not_hide_a_newer_one(bare: Checkout, bare_path: Path) -> None:
    (bare_path / "python3.10").symlink_to(sys.executable)
    assert bare.run("status").code == 0


SHIM = f"""#!/usr/bin/env bash
set -e
[ -n "$PYENV_DEBUG" ] && set -x
cd "{{0}}"
[ -f *.here ] || exit 5
exec "{sys.executable}" "$@"
"""
OF_THE_SHELL = {
    "SHELLOPTS": "noglob",
    "BASHOPTS": "failglob",
    "BASH_FUNC_python3%%": "() { return 8; }",
    "BASH_FUNC_cd%%": "() { return 9; }",
}


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("name", [*OF_THE_SHELL, "BASH_ENV", "ENV"])
def test_a_shim_of_pyenv_is_a_python_whatever_the_shell_exports(
    bare: Checkout, bare_path: Path, tmp_path: Path, name: str, asked: bool
) -> None:
    """A shim is a bash script, and inherits what the user's shell exports to slurm.sh."""
    (tmp_path / "one.here").touch()
    shim = program(bare_path / "python3", SHIM.format(tmp_path))
    assert bare.run("status").code == 0
    bare.depend_on("tiny-beta")
    leaves = program(tmp_path / "leaves", f'case $0 in *"{shim.name}") exit 9 ;; esac\n')
    exported = {name: OF_THE_SHELL.get(name, str(leaves))} | ({"HARNESS_PYTHON": str(shim)} if asked else {})
    answer = bare.run("status", **exported)
    assert answer.code == 0, answer.stderr
    assert answer.said["beta"]


@pytest.mark.parametrize("named", [True, False])
def test_the_module_of_the_named_site_brings_one_else_that_of_any_site(
    bare: Checkout, tmp_path: Path, named: bool
) -> None:
    program(tmp_path / "modules" / "python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    text = (bare.root / "configs" / "sites" / "leonardo.yaml").read_text()
    theirs = next(line.split()[1] for line in text.splitlines() if line.startswith("python_module:"))
    module = f"""() {{ [ "$*" = "load {"python/9.9" if named else theirs}" ] || return 1
        export PATH='{tmp_path}/modules':$PATH LD_LIBRARY_PATH=/opt/python/lib; }}"""
    site = ["--site", site_file(tmp_path, "python_module: python/9.9   # a comment\n")] if named else []
    answer = bare.run("status", *site, **{"BASH_FUNC_module%%": module})
    assert answer.code == 0, answer.stderr
    assert f"module {'python/9.9' if named else theirs}" in answer.stderr
    assert "LD_LIBRARY_PATH=/opt/python/lib" in (bare.venv / "harness-python").read_text()


@pytest.fixture
def contained(bare: Checkout, bare_path: Path, tmp_path: Path) -> Checkout:
    """A machine with a Python only in an image, and a stand-in for the program that starts images."""
    # It starts the command after the image; inside there is a Python and no Slurm.
    inside = f'shift 6; [ "$1" != python3 ] || {{ shift; set -- "{sys.executable}" "$@"; }}; exec "$@"'
    path = 'PATH="$APPTAINERENV_PREPEND_PATH${APPTAINERENV_PREPEND_PATH:+:}${PATH%:*}"; export PATH'
    program(bare_path / "apptainer", f'#!/bin/sh\necho "$6" >>"{tmp_path}/images"\n{path}\n{inside}\n')
    for tool in ("basename", "chmod", "cp", "id", "ln", "mkfifo", "mktemp", "rm"):
        where = shutil.which(tool)
        assert where, tool
        (bare_path / tool).symlink_to(where)
    image = tmp_path / "my images" / "training.sif"
    image.parent.mkdir()
    image.touch()
    site = site_file(tmp_path, 'container:\n  runtime: apptainer\n  image: "${IMAGES}/training.sif"\n')
    outside = program(tmp_path / "outside" / "sbatch", SBATCH).parent
    return Checkout(
        bare.root,
        dict(bare.environment)
        | {"HARNESS_SITE": site, "IMAGES": str(image.parent), "PATH": f"{bare_path}:{outside}", "SLURM_JOB_ID": "7"},
    )


SBATCH = """#!/bin/sh
echo "Submitted from $PWD: $* ($SBATCH_ACCOUNT, inside ${SLURM_JOB_ID-no job})"
echo "sbatch: a warning" >&2
exit 3
"""

SUBMIT = """
import json, os, subprocess
environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | {"SBATCH_ACCOUNT": "mine"}
done = subprocess.run(["sbatch", "--parsable", "a b.sh"], capture_output=True, text=True, env=environment)
print(json.dumps([done.returncode, done.stdout, done.stderr]))
raise SystemExit(7)
"""


@pytest.mark.parametrize(
    ("field", "starts"),
    [
        ("runtime: apptainer", True),
        ("command: apptainer\n  python: python3", True),
        ("runtime: pyxis\n  command: apptainer\n  python: python3", False),
    ],
    ids=["today's", "an older file's", "one of srun"],
)
def test_the_sites_container_is_the_last_resort_if_it_starts_on_this_machine(
    contained: Checkout, tmp_path: Path, field: str, starts: bool
) -> None:
    site = Path(contained.environment["HARNESS_SITE"])
    site.write_text(site.read_text().replace("runtime: apptainer", field))
    answer = contained.run("status")
    assert (answer.code == 0) is starts, answer.stderr
    assert (tmp_path / "images").exists() is starts
    if starts:
        assert answer.said["alpha"]
        assert "apptainer exec" in (contained.venv / "harness-python").read_text()
        images = (tmp_path / "images").read_text().splitlines()
        assert set(images) == {str(tmp_path / "my images" / "training.sif")}
        assert not contained.run("status").installed_something


def test_from_a_container_the_host_s_slurm_is_reached_and_nothing_is_left(contained: Checkout, tmp_path: Path) -> None:
    (contained.root / "harness" / "__main__.py").write_text(SUBMIT)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    answer = contained.run("-e", "1", cwd=tmp_path, TMPDIR=str(temporary))
    code, said, warned = json.loads(answer.stdout)
    assert said == f"Submitted from {tmp_path}: --parsable a b.sh (mine, inside no job)\n"
    assert (answer.code, code, warned) == (7, 3, "sbatch: a warning\n")
    assert list(temporary.iterdir()) == []


@pytest.fixture
def others(open_place: Path, wheels: Path) -> Checkout:
    """The checkout of another user, who may only read it."""
    if os.geteuid() != 0 or not Path("/usr/bin/python3").exists():
        pytest.skip("needs root and the system's Python to become another user")
    shutil.copytree(wheels, open_place / "wheels")
    mine = make_checkout(open_place / "course", open_place / "wheels")
    for path in (open_place, *open_place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return Checkout(mine.root, dict(mine.environment) | {"HARNESS_PYTHON": "/usr/bin/python3", "HOME": "/nonexistent"})


def test_an_unwritable_checkout_names_the_way_out(others: Checkout) -> None:
    answer = replace(others, user=NOBODY).run("status")
    assert answer.code == 1
    assert len(answer.stderr.splitlines()) == 1
    assert "HARNESS_VENV" in answer.stderr


@pytest.mark.long
def test_an_unwritable_checkout_works_with_an_environment_elsewhere(others: Checkout, open_place: Path) -> None:
    own = open_place / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    answer = replace(others, user=NOBODY).run("status", HARNESS_VENV=str(own / "venv"))
    assert answer.code == 0, answer.stderr
    assert answer.said["prefix"] == str(own / "venv")
    assert list((own / "venv" / "pycache").rglob("__init__*.pyc")), "what was compiled is not kept"


def test_one_person_s_environment_serves_those_who_may_only_read(others: Checkout) -> None:
    assert others.run("status").code == 0
    answer = replace(others, user=NOBODY).run("status")
    assert answer.code == 0, answer.stderr
    assert answer.stderr == ""
