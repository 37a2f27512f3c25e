"""The workflows of containers/ci: the lines that GitLab and GitHub would run, and how each ends.

`pip install` is not repeated: the environment is that of the tests' wheel, with the tests' own training packages.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.wheel.wheel_shared import ROOT, Installed, run

CI = ROOT / "containers" / "ci"
GITLAB, GITHUB = (
    yaml.safe_load((CI / name).read_text(encoding="utf-8")) for name in ("gitlab-ci.yml", "github-workflow.yml")
)
JOB = GITLAB["training-speed"]
(STEP,) = (step for step in GITHUB["jobs"]["training-speed"]["steps"] if step.get("name") == "check")
LINES: dict[str, tuple[str, dict[str, Any]]] = {  # the script of each, and the variables that its file sets
    "gitlab": (JOB["script"][0], GITLAB["variables"]),
    "github": (STEP["run"], GITHUB["jobs"]["training-speed"]["env"]),
}


def ended(name: str, folder: Path, before: str = "", **variables: str) -> Any:
    """As both services run their lines: bash stops at the first failure."""
    script, own = LINES[name]
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("HARNESS_", "PYTHON"))}
    set_by_file = {name: str(value) for name, value in own.items()}
    environment = kept | set_by_file | {"GITHUB_STEP_SUMMARY": os.devnull} | variables
    return run("bash", "-eo", "pipefail", "-c", before + script, cwd=folder, env=environment)


@pytest.mark.parametrize("name", LINES)
def test_a_wrong_revision_fails_it_with_its_sentence(trainer: Installed, name: str) -> None:
    git = ("git", "-C", trainer.folder, "-c", "user.name=a", "-c", "user.email=a@example.org")
    (trainer.folder / "train.py").touch()
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "A training"]):
        assert run(*git, *words).returncode == 0
    wrong = {"BASE": "nothing", "CI_MERGE_REQUEST_DIFF_BASE_SHA": "nothing"}
    done = ended(name, trainer.folder, PATH=f"{trainer.venv / 'bin'}:{os.environ['PATH']}", **wrong)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "nothing" in done.stderr
    assert not (trainer.folder / "check.xml").exists()


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_what_cannot_be_told_is_a_warning_and_no_failure(tmp_path: Path, code: int, ends: int) -> None:
    assert JOB["allow_failure"] == {"exit_codes": 3}
    done = ended("github", tmp_path, f"training-traces() {{ return {code}; }}\n")
    assert done.returncode == ends
    assert ("::warning::" in done.stdout) == (code == 3)


def test_gitlab_keeps_the_markdown() -> None:
    assert JOB["artifacts"] == {"when": "always", "paths": ["check.md"]}


def test_both_ask_the_same_of_check() -> None:
    """But for the variable that each service has for the target's commit."""
    gitlab, github = (script.replace("\\\n", "").split() for script, _ in LINES.values())
    words = [each.replace("CI_MERGE_REQUEST_DIFF_BASE_SHA", "BASE") for each in gitlab]
    at = github.index("training-traces")
    assert github[at : at + len(words)] == words
    ours, theirs = ({name: str(value) for name, value in own.items()} for _, own in LINES.values())
    assert ours.items() - {("GIT_DEPTH", "0")} == theirs.items() - {("BASE", theirs["BASE"])}
