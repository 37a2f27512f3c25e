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


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (ARGUMENTS, {}),
        ([], {}),
        (["status", "--fail"], {}),
        (["status"], {"PYTHONPATH": "{here}", "PYTHONHOME": "/nonexistent"}),
    ],
    ids=["every word", "no word", "the exit status", "a site's PYTHONPATH"],
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
    assert not answer.said["torch"], "nothing asked for the training packages"
    assert (answer.said["prefix"], answer.said["cwd"]) == (str(warm.venv), str(tmp_path))


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
