"""Each run records with what it ran: two runs of one command differ in nothing, and what differs is named."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from own_trainings import SCRIPTS

from harness.analysis.summary import Summary
from harness.compare.summaries import EnvironmentChanges, compare
from harness.measure.run_contents import read_contents, with_contents
from harness.observe import environment
from harness.report.compare.terminal import render_comparisons
from tests.own.test_observe import environ, observed, runs

pytestmark = pytest.mark.train
SECRETS = {"NCCL_AUTH_TOKEN": "abcdef0123", "CCL_LOGIN": "hf_abcdefghijkl"}


class Recorded(NamedTuple):
    """Two runs of one command, and one with other variables and packages; of each its folder."""

    first: Path
    again: Path
    other: Path

    @property
    def summaries(self) -> list[Summary]:
        return [with_contents(Summary(), read_contents(each)) for each in self]


def a_package(folder: Path, name: str, version: str, *modules: str) -> None:
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "RECORD").write_text("".join(f"{module},,\n" for module in (*modules, f"{about.name}/RECORD")))
    for module in modules:
        (folder / module).write_text("")


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for place, version in (("a", "1.0"), ("b", "1.1")):
            a_package(folder / place, "Toy_Used", version, "toymodule.py")
            a_package(folder / place, "toy.idle", version, "idlemodule.py")
            (folder / place / "run.py").write_text(
                f"import sys, runpy, toymodule; sys.path.insert(0, {str(SCRIPTS)!r})\n"
                f"runpy.run_path({str(SCRIPTS / 'one_process.py')!r}, run_name='__main__')\n"
            )
        for place, more in (
            ("a", {}),
            ("a", {}),
            ("b", {"KMP_BLOCKTIME": "7", "LOADEDMODULES": "cuda/12.1", **SECRETS}),
        ):
            env = environ(PYTHONPATH=str(folder / place), SLURM_CPUS_PER_TASK="2", TORCHELASTIC_RUN_ID=str(os.getpid()))
            done = observed(folder, sys.executable, str(folder / place / "run.py"), "--steps", "2", env={**env, **more})
            assert done.returncode == 0, done.stderr
        yield Recorded(*runs(folder))


def file_of(run: Path) -> dict[str, Any]:
    (file,) = (run / "environment").iterdir()
    return dict(json.loads(file.read_text(encoding="utf-8")))


def test_two_runs_of_one_command_differ_in_nothing(recorded: Recorded) -> None:
    assert file_of(recorded.first) == file_of(recorded.again)
    a, b, _ = recorded.summaries
    found = compare(a, b, ("a", "b"))
    assert found.configuration == [] and found.environment == EnvironmentChanges(whole=True)
    assert "\nNot asked for, but different: nothing.\n" in render_comparisons([found])


def test_all_of_the_environment_is_there_and_no_secret(recorded: Recorded) -> None:
    found = file_of(recorded.other)
    assert found["system"]["executable"] == sys.executable and found["system"]["kernel"] == os.uname().release
    assert found["packages"]["torch"] and found["packages"]["toy-used"] == "1.1" == found["packages"]["toy-idle"]
    assert (
        {"torch", "toy-used"} <= {*found["used"]} and "toy-idle" not in found["used"] and "pytest" not in found["used"]
    )
    assert found["variables"].items() >= {"KMP_BLOCKTIME": "7", "SLURM_CPUS_PER_TASK": "2"}.items()
    assert not {*SECRETS, "TORCHELASTIC_RUN_ID"} & {*found["variables"]}
    assert not any(secret in json.dumps(found) for secret in SECRETS.values())
    assert found["modules"] == ["cuda/12.1"]
    observer = str(Path(environment.__file__).parents[1])
    assert observer not in found["variables"]["PYTHONPATH"], "the observer's folder is none of the user's"


def test_a_comparison_names_used_packages_and_variables_and_counts_the_others(recorded: Recorded) -> None:
    a, _, b = recorded.summaries
    found = compare(a, b, ("a", "b"))
    assert next((d.name, d.a, d.b) for d in found.environment.besides) == ("toy-used", "1.0", "1.1")
    assert ("module cuda", "not loaded", "12.1") in [(d.name, d.a, d.b) for d in found.environment.besides]
    assert [d.name for d in found.environment.unused] == ["toy-idle"]
    assert "KMP_BLOCKTIME" in [d.name for d in found.configuration], "it was set for this run"
    assert "KMP_BLOCKTIME" not in [d.name for d in found.environment.besides]
    text = " ".join(render_comparisons([found]).split())
    assert "Not asked for, but different: toy-used 1.0 → 1.1, " in text
    assert ", and 1 package that neither run used." in text


def test_a_page_names_the_versions_of_the_packages_that_train(recorded: Recorded) -> None:
    (rank,) = recorded.summaries[0].training
    assert list(rank.versions)[:2] == ["python", "torch"] and "toy-used" not in rank.versions
