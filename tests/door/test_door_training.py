"""The training extra is a gigabyte: it comes when this machine is about to train, and at no other time."""

from __future__ import annotations

from pathlib import Path

import pytest
from door_checkout import Checkout

CONTROLLER_UP = "#!/bin/sh\necho 'Slurmctld(primary) at login1 is UP'\n"
CONTROLLER_DOWN = "#!/bin/sh\necho 'Slurmctld(primary) at login1 is DOWN'\nexit 1\n"


@pytest.fixture
def scheduler(tmp_path: Path) -> Path:
    folder = tmp_path / "scheduler"
    folder.mkdir()
    for name in ("sbatch", "scontrol"):
        (folder / name).write_text(CONTROLLER_UP)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def anywhere(checkout: Checkout, scheduler: Path) -> Checkout:
    """No site chosen, a scheduler that can be taken away."""
    path = f"{scheduler}:{checkout.environment['PATH']}"
    environment = {k: v for k, v in checkout.environment.items() if k != "HARNESS_SITE"} | {"PATH": path}
    return Checkout(checkout.root, environment)


@pytest.mark.parametrize("site", [["--site", "local"], ["--site=local"]])
def test_a_launch_at_the_local_site_brings_it(checkout: Checkout, site: list[str]) -> None:
    answer = checkout.run("-e", "1", *site)
    assert answer.said["torch"]
    assert answer.said["arguments"] == ["-e", "1", *site]


def test_running_a_run_again_brings_it_too(checkout: Checkout) -> None:
    answer = checkout.run("rerun", "last", HARNESS_SITE="local")
    assert answer.said["torch"]
    assert answer.said["arguments"] == ["rerun", "last"]


def test_a_scheduler_that_does_not_answer_means_this_machine(anywhere: Checkout, scheduler: Path) -> None:
    assert not anywhere.run("-e", "1").said["torch"]
    (scheduler / "scontrol").write_text(CONTROLLER_DOWN)
    assert anywhere.run("-e", "1").said["torch"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-e", "1", "--dry-run"],
        ["--help"],
        ["-e", "1", "-h"],
        ["status"],
        [],
        ["-e", "1", "--site", "leonardo"],
    ],
)
def test_nothing_else_does(warm: Checkout, arguments: list[str]) -> None:
    answer = warm.run(*arguments, **({} if "--site" in arguments else {"HARNESS_SITE": "local"}))
    assert not answer.said["torch"]
    assert not answer.installed_something


def test_a_wrong_request_is_told_before_anything_is_installed(warm: Checkout) -> None:
    answer = warm.run("-e", "5", HARNESS_SITE="local")
    assert answer.stderr == "slurm.sh: -e 5: there is no exercise 5\n"
    assert answer.code == 1
