"""Once .venv stands, slurm.sh is nothing but a way to the harness."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import HOSTILE, Checkout
from tests.waiting import limit_s

ARGUMENTS = [
    "-e",
    "1",
    "--",
    "--data",
    "two words",
    "it's",
    '"',
    "$(echo no)",
    "`no`",
    "*",
    "",
    "a\nb",
    "\\",
    "~",
    "--",
]


def test_arguments_arrive_word_for_word(warm: Checkout) -> None:
    answer = warm.run(*ARGUMENTS)
    assert answer.said["arguments"] == ARGUMENTS


def test_no_argument_is_no_argument(warm: Checkout) -> None:
    assert warm.run().said["arguments"] == []


def test_the_exit_status_is_the_harness_s(warm: Checkout) -> None:
    assert warm.run("status", "--fail").code == 7


def test_it_says_nothing_of_its_own(warm: Checkout) -> None:
    assert warm.run("status").stderr == ""


def test_it_runs_in_the_environment_and_leaves_one_where_one_stands(warm: Checkout, tmp_path: Path) -> None:
    answer = warm.run("status", cwd=tmp_path)
    assert answer.said["prefix"] == str(warm.venv)
    assert answer.said["cwd"] == str(tmp_path)


def test_a_folder_one_stands_in_cannot_replace_a_module(warm: Checkout, tmp_path: Path) -> None:
    for name in ("harness", "json", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    assert warm.run("status", cwd=tmp_path).code == 0


def test_a_site_s_pythonpath_cannot_replace_a_module(warm: Checkout, tmp_path: Path) -> None:
    (tmp_path / "harness.py").write_text("raise SystemExit('the wrong module')")
    assert warm.run("status", PYTHONPATH=str(tmp_path), PYTHONHOME="/nonexistent").code == 0


def test_the_harness_is_importable_for_the_processes_it_starts(warm: Checkout, tmp_path: Path) -> None:
    command = [str(warm.venv / "bin" / "python"), "-c", "import harness; print(harness.__file__)"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=limit_s()).stdout
    assert Path(found.strip()).parent == warm.root / "harness"


def test_compute_nodes_have_one_program_to_start(warm: Checkout) -> None:
    command = [str(warm.venv / "harness-python"), "-c", "import sys; print(sys.prefix)"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=limit_s()).stdout
    assert found.strip() == str(warm.venv)


def test_sh_will_do(warm: Checkout) -> None:
    command = ["sh", *warm.command("status")[1:]]
    assert subprocess.run(command, env=warm.env(), capture_output=True, check=False, timeout=limit_s()).returncode == 0


@pytest.mark.parametrize("relative", [False, True])
def test_a_link_to_it_leads_to_the_same_checkout(warm: Checkout, tmp_path: Path, relative: bool) -> None:
    link = tmp_path / "launch"
    target = warm.root / "slurm.sh"
    link.symlink_to(target if not relative else Path("there") / HOSTILE / "slurm.sh")
    (tmp_path / "there").symlink_to(warm.root.parent)
    done = subprocess.run(
        ["bash", link, "status"], env=warm.env(), capture_output=True, text=True, check=True, timeout=limit_s()
    )
    assert json.loads(done.stdout)["prefix"] == str(warm.venv)
    assert done.stderr == ""
