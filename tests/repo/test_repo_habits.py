"""Habits that a maintainer to come relies on: messages with a reason, a changelog of releases, a short first page."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from scripts import commit_message
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "scripts/hooks"
WIDTH = 120
LONGEST_CHANGELOG = 200  # lines
LONGEST_CONTRIBUTING = 8192  # bytes
REASON = "\n\nThe reason.\n"


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    who = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    environ |= who | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", *words], cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=limit_s()
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose commits pass our hook."""
    folder = tmp_path_factory.mktemp("repository")
    assert git(folder, "init", "-q").returncode == 0
    git(folder, "config", "core.hooksPath", str(HOOKS))
    return folder


NO_BODY = "the message has no body: write the reason below an empty line"
MESSAGES = {
    "x" * 73 + REASON: "the subject has 73 characters: 72 at most",
    "Reports are faster": NO_BODY,
    "Reports are faster\n\nSigned-off-by: A <a@b>": NO_BODY,
    f"Reports\n\n# Please enter the message.\n{commit_message.SCISSORS}\nthe difference\n": NO_BODY,
    "Reports are faster\nbecause tables are kept": "the second line is not empty ('because tables are kept')",
    "é" * 72 + REASON: "",
    "Reports are faster\n\nTables are kept.\n\nSigned-off-by: A <a@b>": "",
    "fixup! Reports": "",
    "Merge branch 'x'\n": "",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_without_a_short_subject_and_a_reason_has_a_fault(message: str) -> None:
    assert "".join(commit_message.faults(message)).startswith(MESSAGES[message])
    assert bool(commit_message.faults(message)) == bool(MESSAGES[message])


@pytest.mark.parametrize(("message", "code"), [("Reports are faster", 1), (f"Reports are faster{REASON}", 0)])
def test_the_hook_stops_a_commit_and_says_why(repository: Path, message: str, code: int) -> None:
    done = git(repository, "commit", "-q", "--allow-empty", "-m", message)
    assert (done.returncode, NO_BODY in done.stderr) == (code, bool(code))


def test_commits_since_the_hook_have_a_short_subject_and_a_reason() -> None:
    shallow = git(ROOT, "rev-parse", "--is-shallow-repository")
    if shallow.returncode != 0 or shallow.stdout.strip() != "false":
        pytest.skip("no history of git, or not all of it")
    first = git(ROOT, "log", "--diff-filter=A", "--format=%H", "--", "scripts/hooks/commit-msg").stdout.split()
    if not first:
        pytest.skip("the hook is in no commit yet")
    since = git(ROOT, "log", "--no-merges", "--ancestry-path", "--format=%h%n%B%x00", f"{first[-1]}..HEAD").stdout
    commits = [text.strip().split("\n", 1) for text in since.split("\0") if text.strip()]
    assert {name: found for name, message in commits if (found := commit_message.faults(message))} == {}


def test_the_changelog_is_a_page_that_begins_with_what_comes_and_the_release() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    assert len(lines) <= LONGEST_CHANGELOG, "what is new, one line each; internals are in the commits"
    releases = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert releases[:2] == ["Unreleased", version[1]]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", release) for release in releases[1:])


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_a_page_for_maintainers_fits_an_editor(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > WIDTH] == []
    assert name == "CHANGELOG.md" or (ROOT / name).stat().st_size <= LONGEST_CONTRIBUTING
