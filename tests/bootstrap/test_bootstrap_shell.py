"""What the user's shell exports does not stop slurm.sh: it finds a Python, makes .venv, and starts the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bootstrap.bootstrap_checkout import Checkout
from tests.common.test_scrub_environment import SPOILS

EXPORTED = {name: value for name, (value, _) in SPOILS.items() if name != "BASH_ENV"}


def test_an_environment_is_made_and_used_whatever_the_shell_exports(checkout: Checkout) -> None:
    (checkout.root.parent / "elsewhere").mkdir()
    answer = checkout.run("status", **EXPORTED)
    assert answer.code == 0, answer.stderr
    assert answer.installed_something
    assert answer.said["alpha"]
    dropped = answer.said["environment"]["HARNESS_NOT_PASSED"].split()
    assert dropped == ["POSIXLY_CORRECT", "SHELLOPTS", "BASHOPTS", "CDPATH"]


@pytest.mark.parametrize("name", EXPORTED)
def test_no_exported_variable_stops_a_start(warm: Checkout, name: str) -> None:
    answer = warm.run("-e", "1", **{name: EXPORTED[name]})
    assert answer.said["arguments"] == ["-e", "1"]
    assert answer.stderr == ""


def test_cd_finds_the_checkout_also_with_a_cdpath(warm: Checkout, tmp_path: Path) -> None:
    """`bash folder/slurm.sh`: bash would look for the folder in CDPATH first."""
    (tmp_path / warm.root.name).mkdir()
    relative = Checkout(Path(warm.root.name), warm.environment)
    answer = relative.run("status", cwd=warm.root.parent, CDPATH=str(tmp_path))
    assert answer.said["prefix"] == str(warm.venv)
