"""`slurm.sh check --rev A B`: two revisions of the user's repository, each in a worktree of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.common.system.programs import ask
from harness.run import Run
from tests.study.kit import Say
from tests.study.revisions_shared import LAUNCH, SPEED, commit, commits_of, folder_of, git, repository, stand_in_by_file


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of three commits, of which the last is slower, as the current folder."""
    folder = tmp_path / "my project"
    repository(folder, 100, 100, 112)
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(folder)
    return folder


def untouched(project: Path, runs: Path) -> None:
    """The user's repository has what it had, and no worktree is left anywhere."""
    assert git(project, "status", "--porcelain") == ""
    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert not (project / ".git" / "worktrees").exists()
    assert not [each for each in runs.glob("series/*.revisions/*") if each.is_dir()]


def test_each_arm_runs_in_a_worktree_of_its_commit_and_the_verdict_names_both(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    made = stand_in_by_file(monkeypatch)
    a, b = git(project, "rev-parse", "main~2"), git(project, "rev-parse", "main")
    said = say("check", "--rev", "main~2", "main", LAUNCH)
    assert said.code == 1 and commits_of(made) == [{"a": a, "b": b}[letter] for letter in "abbabaab"]
    assert said.out.startswith(f"worse: {b[:7]} (c2) against {a[:7]} (c0): the interval excludes")
    assert f"A: {a[:7]} (c0): {LAUNCH}\n" in said.out and f"code  {a[:12]}  {b[:12]}" in said.out
    assert f"A: {a[:7]} (c0)\nB: {b[:7]} (c2)\n" in said.err
    again = say("check", "local-1", "local-2", "--json").json["next"]
    assert again == f"slurm.sh check --rev {a[:12]} {b[:12]} '{LAUNCH}' --runs 4", "of existing runs, too"
    untouched(project, tmp_path / "runs")


def test_uncommitted_changes_a_detached_head_and_a_git_dir_of_the_shell_change_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    stand_in_by_file(monkeypatch)
    git(project, "checkout", "--quiet", "--detach", "main~1")
    (project / SPEED).write_text("500\n")
    (project / "new.txt").write_text("mine\n")
    git(project, "add", "new.txt")
    before = git(project, "status", "--porcelain"), git(project, "rev-parse", "HEAD")
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        patch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
        said = say("check", "--rev", "HEAD~1", "HEAD", LAUNCH, "--json")
    assert f"not measured: changes of 2 files since the last commit in {project}" in said.err
    assert said.code == 0 and 99e6 < said.json["b"]["value"] < 101e6
    assert (git(project, "status", "--porcelain"), git(project, "rev-parse", "HEAD")) == before
    assert (project / SPEED).read_text() == "500\n"


def test_the_training_starts_in_the_folder_where_the_command_was_typed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    inside = project / "deep er" / "one"
    inside.mkdir(parents=True)
    (inside / "train.py").write_text("")
    (inside / SPEED).write_text("70\n")
    commit(project, "a folder", 100)
    monkeypatch.chdir(inside)
    made = stand_in_by_file(monkeypatch)
    assert say("check", "--rev", "HEAD", "HEAD", LAUNCH, "--json").code == 0
    assert {folder_of(run).parts[-2:] for run in made} == {("deep er", "one")}
    said = say("check", "--rev", "HEAD~1", "HEAD", LAUNCH)
    assert said.code == 3 and "has no folder deep er/one, and a training starts where this was typed" in said.err
    untouched(project, tmp_path / "runs")


def test_a_revision_is_built_once_and_a_build_that_fails_gives_its_last_line_and_its_log(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    def was_built_once(run: Run) -> None:
        assert (folder_of(run) / "built").read_text() == "x\n"

    made = stand_in_by_file(monkeypatch, was_built_once)
    script = "echo x >> built; test $(cat speed.txt) -lt 110 || { echo too slow; exit 7; }"
    build = ["--build", f"bash -c {shlex.quote(script)}"]
    assert say("check", "--rev", "main~2", "main~1", LAUNCH, *build).code == 0 and len(made) == 8
    said = say("check", "--rev", "main~2", "main", LAUNCH, *build)
    found = re.search(r"\(c2\): its build failed with exit status 7, its last line: too slow \((.*\.log)\)", said.err)
    assert said.code == 3 and found and Path(found[1]).read_text().endswith("too slow\n")
    untouched(project, tmp_path / "runs")


@pytest.mark.long  # a minute: it trains until it is interrupted, and then again
def test_ctrl_c_while_it_trains_removes_the_worktrees_and_says_how_to_go_on(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    def interrupt(_: Run) -> None:
        signal.raise_signal(signal.SIGTERM if len(made) == 3 else signal.SIGURG)

    made = stand_in_by_file(monkeypatch, interrupt)
    said = say("check", "--rev", "main~2", "main", LAUNCH)
    again = re.search(r"continue with: slurm.sh check (.*) --resume (\S+)", said.err)
    assert said.code == 130 and again and f"--rev {git(project, 'rev-parse', '--short', 'main~2')} " in again[1]
    untouched(project, tmp_path / "runs")
    more = stand_in_by_file(monkeypatch)
    assert say("check", "--rev", "main~2", "main", LAUNCH, "--resume", again[2]).code == 1
    assert len(more) == 8 - 3


def test_worktrees_of_a_killed_check_are_removed_by_the_next_one_and_nothing_else_is(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    stand_in_by_file(monkeypatch)
    left = tmp_path / "runs" / "series" / "check-x.revisions"
    left.mkdir(parents=True)
    ended = ask(["bash", "-c", "echo $$"], 10, {}).out.strip()
    host = ask(["hostname"], 10, {"PATH": "/usr/bin:/bin"}).out.strip()
    (left / "lock").write_text(f"process {ended} on {host}\n")
    git(project, "worktree", "add", "--detach", str(left / "abc"), "main")
    git(project, "worktree", "add", "--detach", str(tmp_path / "mine"), "main")
    assert say("check", "--rev", "main~2", "main~1", LAUNCH).code == 0
    assert not (left / "abc").exists() and (tmp_path / "mine" / "train.py").exists()
    assert len(git(project, "worktree", "list").splitlines()) == 2


HOSTILE = "\x1b[31m$(touch hacked) <img src=x> | `x` \ufffe &"


@pytest.mark.parametrize("b", [("c3", 112), (HOSTILE, 100)])
def test_markdown_and_junit_have_the_verdict_and_a_subject_of_a_commit_can_do_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say, b: tuple[str, float]
) -> None:
    stand_in_by_file(monkeypatch)
    commit(project, *b)
    markdown, xml = tmp_path / "check.md", tmp_path / "check.xml"
    said = say("check", "--rev", "main~3", "main", LAUNCH, "--markdown", str(markdown), "--junit", str(xml))
    is_worse = b[1] > 100
    assert said.code == is_worse and "\x1b" not in said.out and not list(tmp_path.rglob("hacked"))
    text, root = markdown.read_text(), ElementTree.parse(xml).getroot()
    assert text.startswith("**worse**: " if is_worse else "**same**: ")
    assert is_worse or r"\$(touch hacked) \<img src=x\> \| \`x\`" in text
    assert f"| B | {git(project, 'rev-parse', '--short', 'main')} (" in text.replace("\\", "")
    assert [each.tag for each in root[0]] == ["failure"] * is_worse + ["system-out"]
    assert (root.get("failures"), root[0].get("classname")) == (str(int(is_worse)), "check.step_ns")


def test_runs_that_executed_code_of_the_working_tree_give_no_verdict(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    """As a package that is installed in editable mode does."""

    def executes(run: Run) -> None:
        (run.path / "lines").mkdir()
        place = {"event": "place", "id": 0, "file": f"{project}/train.py", "line": 1, "function": "f", "callers": []}
        (run.path / "lines" / "rank0.jsonl").write_text(json.dumps(place) + "\n")

    stand_in_by_file(monkeypatch, executes)
    said = say("check", "--rev", "main~2", "main", LAUNCH)
    assert said.code == 3
    assert f"executed {project}/train.py, of your working tree and not of the revision" in said.err
    untouched(project, tmp_path / "runs")


@pytest.mark.parametrize(("untold", "is_found"), [(3, True), (2, False)])
def test_the_documented_line_finds_the_commit_with_git_bisect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untold: int, is_found: bool
) -> None:
    """A stand-in for `check` ends as the commit's file says: git skips a commit that is not told, and stops if the
    request is wrong."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "kit").mkdir()
    asked = "check --rev v1.2 HEAD run -g 2 -- train.py"
    (tmp_path / "kit" / "slurm.sh").write_text(f'test "$*" = "{asked}" || exit 1; exit $(cat {SPEED})\n')
    project = tmp_path / "project"
    commits = repository(project, *[0] * 8, untold, *[0] * 3, *[1] * 5)
    git(project, "tag", "v1.2", commits[0])
    text = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()
    start, line, _ = re.findall(r"^git bisect .*", text, re.MULTILINE)
    monkeypatch.chdir(project)
    git(project, *shlex.split(start, comments=True)[1:])
    done = ask(["bash", "-c", line], 60, os.environ)
    found = re.findall(r"(\w+) is the first bad commit", done.out)
    assert found == ([commits[12]] if is_found else []) and bool(done.code) != is_found, done.out + done.err
