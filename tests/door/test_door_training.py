"""The training extra is a gigabyte: it comes when this machine is about to train, and at no other time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from door_checkout import ROOT, Checkout

from harness.cli.commands import COMMANDS

DOOR = (ROOT / "slurm.sh").read_text(encoding="utf-8")

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


def launching_words() -> set[str]:
    """The commands that slurm.sh believes may train."""
    found = re.search(r"^launches\(\) \{\n  case \$\{1-\} in -\* \|(.*?)\)", DOOR, re.MULTILINE)
    assert found is not None
    return {word.strip() for word in found[1].split("|")}


def test_the_doors_list_of_commands_that_train_is_the_harnesss_own() -> None:
    submits = {name for name, entry in COMMANDS.items() if "submit(" in source_of(entry.module)}
    assert launching_words() <= set(COMMANDS)
    assert {"rerun", "lesson"} <= launching_words()
    assert {entry.module for name, entry in COMMANDS.items() if name in launching_words()} == {
        COMMANDS[name].module for name in submits
    }


def source_of(module: str) -> str:
    return (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [["1a"], ["1a", "--hint", "--run"], ["--site", "local", "1a"], ["1a", "--again", "--answer"]]
)
def test_a_lesson_that_trains_brings_it(checkout: Checkout, words: list[str]) -> None:
    assert checkout.run("lesson", *words, HARNESS_SITE="local").said["torch"]


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
        ["lesson"],
        ["lesson", "1a", "--answer"],
        ["lesson", "1a", "--no-run"],
        ["lesson", "--site", "local"],
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
