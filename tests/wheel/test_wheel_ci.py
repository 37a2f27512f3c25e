"""The workflows of containers/ci: the lines that GitLab and GitHub would run, in a repository with a change to judge.

`pip install` is not repeated: the environment is that of the tests' wheel, with the tests' own training packages.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.wheel.wheel_shared import ROOT, Installed, run

CI = ROOT / "containers" / "ci"
TRAIN = """
import time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    time.sleep({seconds})
"""


def loaded(name: str) -> dict[Any, Any]:
    found = yaml.safe_load((CI / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def of_gitlab() -> tuple[str, dict[str, str]]:
    """The script of the job, and the variables that the file sets."""
    found = loaded("gitlab-ci.yml")
    (line,) = found["training-speed"]["script"]
    return line, {name: str(value) for name, value in found["variables"].items()}


def of_github() -> tuple[str, dict[str, str]]:
    """The same of the workflow's step."""
    job = loaded("github-workflow.yml")["jobs"]["training-speed"]
    (step,) = (each for each in job["steps"] if each.get("name") == "check")
    return step["run"], {name: str(value) for name, value in job["env"].items()}


@pytest.fixture
def repository(trainer: Installed) -> Path:
    """A repository whose HEAD trains more slowly than the commit before it."""
    git = ("git", "-C", trainer.folder, "-c", "user.name=a", "-c", "user.email=a@example.org")
    assert run("git", "init", "-q", "-b", "main", trainer.folder).returncode == 0
    for seconds in ("0.02", "0.2"):
        (trainer.folder / "train.py").write_text(TRAIN.format(seconds=seconds))
        run(*git, "add", "train.py")
        assert run(*git, "commit", "-q", "-m", f"sleep {seconds}").returncode == 0
    return trainer.folder


def ran(trainer: Installed, script: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """As both services run their lines: bash stops at the first failure."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("HARNESS_", "PYTHON"))}
    kept["PATH"] = f"{trainer.venv / 'bin'}:{kept['PATH']}"
    return run("bash", "-eo", "pipefail", "-c", script, cwd=trainer.folder, env=kept | variables)


def quick(variables: dict[str, str]) -> dict[str, str]:
    return variables | {"TRAINING": "run -g 1 --no-profile -- train.py", "RUNS": "2", "FAIL_ABOVE": "100%"}


@pytest.mark.train
@pytest.mark.long  # half a minute of trainings
def test_gitlabs_job_ends_with_the_verdict_that_it_keeps(trainer: Installed, repository: Path) -> None:
    """HEAD is ten times as slow: worse, or on a busy machine not to be told."""
    script, variables = of_gitlab()
    base = run("git", "-C", repository, "rev-parse", "HEAD~1").stdout.strip()
    done = ran(trainer, script, quick(variables) | {"CI_MERGE_REQUEST_DIFF_BASE_SHA": base})
    assert done.returncode in (1, 3), done.stdout + done.stderr
    verdict = {1: "worse", 3: "cannot tell"}[done.returncode]
    assert verdict in (repository / "check.md").read_text().splitlines()[0]
    case = ElementTree.parse(repository / "check.xml").getroot().find(".//testcase")
    assert case is not None
    assert (case.find("failure") is not None) == (done.returncode == 1)


def test_a_wrong_revision_fails_both_with_its_sentence(trainer: Installed, repository: Path) -> None:
    for script, variables in (of_gitlab(), of_github()):
        wrong = {"BASE": "nothing", "CI_MERGE_REQUEST_DIFF_BASE_SHA": "nothing"}
        done = ran(trainer, script, quick(variables) | wrong | {"GITHUB_STEP_SUMMARY": os.devnull})
        assert done.returncode == 2, done.stdout + done.stderr
        assert "nothing" in done.stderr
        assert not (repository / "check.xml").exists()


def test_what_cannot_be_told_is_a_warning_of_both_and_no_failure() -> None:
    assert loaded("gitlab-ci.yml")["training-speed"]["allow_failure"] == {"exit_codes": 3}
    script, _ = of_github()
    program = "training-traces() { return $CODE; }\n"
    for code, ends in ((0, 0), (1, 1), (2, 2), (3, 0)):
        done = run(
            "bash",
            "-eo",
            "pipefail",
            "-c",
            program + script,
            cwd=CI,
            env=os.environ | of_github()[1] | {"CODE": str(code)},
        )
        assert done.returncode == ends
        assert ("::warning::" in done.stdout) == (code == 3)


def test_both_keep_the_markdown_and_the_junit_file() -> None:
    job = loaded("gitlab-ci.yml")["training-speed"]
    assert job["artifacts"] == {"when": "always", "paths": ["check.md"], "reports": {"junit": "check.xml"}}
    *_, kept = loaded("github-workflow.yml")["jobs"]["training-speed"]["steps"]
    assert kept["if"] == "always()"
    assert kept["with"]["path"].split() == ["check.md", "check.xml"]
    assert "fetch-depth" in (CI / "github-workflow.yml").read_text()


def test_both_ask_the_same_of_check() -> None:
    """But for the variable that each service has for the target's commit."""
    gitlab, github = (script.replace("\\\n", "").split() for script, _ in (of_gitlab(), of_github()))
    words = [each.replace("CI_MERGE_REQUEST_DIFF_BASE_SHA", "BASE") for each in gitlab]
    at = github.index("training-traces")
    assert github[at : at + len(words)] == words
    assert {k: v for k, v in of_gitlab()[1].items() if k != "GIT_DEPTH"} == {
        k: v for k, v in of_github()[1].items() if k != "BASE"
    }
