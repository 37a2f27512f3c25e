"""Once .venv stands, slurm.sh is nothing but a way to the harness, and starts no other program."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import HOSTILE, Checkout
from tests.common.test_scrub_environment import SPOILS
from tests.waiting import limit_s

ARGUMENTS = ["-e", "5", "--", "two words", "it's", '"', "$(echo no)", "`no`", "*", "", "a\nb", "\\", "~", "--"]
EXPORTED = {name: value for name, (value, _) in SPOILS.items() if name != "BASH_ENV"}


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (ARGUMENTS, {}),
        (["status", "--fail"], {}),
        (["status"], {"PATH": "/nonexistent"}),  # where no program can be started
        (["status"], {"PYTHONPATH": "{here}", "PYTHONHOME": "/nonexistent"}),
        *((["status"], {name: EXPORTED[name]}) for name in EXPORTED),
    ],
    ids=["every word", "the exit status", "no program", "a site's PYTHONPATH", *EXPORTED],
)
def test_it_is_nothing_but_a_way_to_the_harness(
    warm: Checkout, tmp_path: Path, words: list[str], changes: dict[str, str]
) -> None:
    """Also in a folder with modules of the same names."""
    for name in ("harness", "json", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    environment = {name: text.replace("{here}", str(tmp_path)) for name, text in changes.items()}
    answer = warm.run(*words, cwd=tmp_path, **environment)
    assert (answer.code, answer.stderr) == (7 if "--fail" in words else 0, "")
    assert answer.said["arguments"] == words
    assert (answer.said["prefix"], answer.said["cwd"]) == (str(warm.venv), str(tmp_path))


def test_compute_nodes_have_one_program_to_start_which_finds_the_harness(warm: Checkout, tmp_path: Path) -> None:
    command = [str(warm.venv / "harness-python"), "-c", "import harness; print(harness.__file__)"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=limit_s()).stdout
    assert Path(found.strip()).parent == warm.root / "harness"


@pytest.mark.parametrize("relative", [False, True])
def test_a_link_to_it_leads_to_the_same_checkout(warm: Checkout, tmp_path: Path, relative: bool) -> None:
    """Also as `sh link`, and where CDPATH has a folder of the checkout's name."""
    link = tmp_path / "launch"
    link.symlink_to(Path("there") / HOSTILE / "slurm.sh" if relative else warm.root / "slurm.sh")
    (tmp_path / "there").symlink_to(warm.root.parent)
    (tmp_path / warm.root.name).mkdir()
    for command in (["sh", str(link)], ["bash", f"{warm.root.name}/slurm.sh"]):
        done = subprocess.run(
            [*command, "status"], cwd=warm.root.parent, env=warm.env(CDPATH=str(tmp_path)), capture_output=True,
            text=True, check=True, timeout=limit_s(),
        )  # fmt: skip
        assert json.loads(done.stdout)["prefix"] == str(warm.venv)
        assert done.stderr == ""


def test_an_environment_is_made_and_used_whatever_the_shell_exports(checkout: Checkout) -> None:
    answer = checkout.run("status", **EXPORTED)
    assert answer.code == 0, answer.stderr
    assert answer.said["alpha"]
    dropped = answer.said["environment"]["HARNESS_NOT_PASSED"].split()
    assert dropped == ["POSIXLY_CORRECT", "SHELLOPTS", "BASHOPTS", "CDPATH"]


def test_a_copied_checkouts_environment_is_used_where_it_lies_now(checkout: Checkout, tmp_path: Path) -> None:
    """Also moved, and without a way to install."""
    checkout.run("status")
    (checkout.venv / "a package of mine").touch()
    copy = Checkout(tmp_path / "copy", checkout.environment)
    shutil.copytree(checkout.root, copy.root, symlinks=True)
    answer = copy.run("status", HARNESS_PIP_ARGS="--no-index")
    assert answer.code == 0, answer.stderr
    assert answer.said["prefix"] == str(copy.venv) and (copy.venv / "a package of mine").exists()
    assert str(checkout.root) not in answer.said["path"] and str(copy.root) in answer.said["path"]
    script = copy.venv / "bin" / "tool"  # of another installer: starts the Python of the first checkout
    script.write_text(f"#!{checkout.venv}/bin/python\n")
    moved = Checkout(copy.root.rename(tmp_path / "moved"), checkout.environment)
    assert moved.run("status", HARNESS_PIP_ARGS="--no-index").code == 1
    assert moved.run("status").code == 0 and not (moved.venv / "bin" / "tool").exists()
