"""`slurm.sh check --bisect` inside of git bisect: which commit git blames, and when it is told to skip or to stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.study.check.bisect import bisect_of
from harness.study.check.revisions import repository_of
from tests.study.revisions_shared import (
    LAUNCH,
    REAL_LAUNCH,
    SPEED,
    blamed,
    commits_of,
    git,
    real_bisect,
    repository,
    stand_in_by_file,
)
from tests.waiting import limit_s

pytestmark = pytest.mark.long  # git bisect of whole histories

BISECT = ["check", "--bisect", LAUNCH]


class Bisection:
    """A git bisect that this process runs as `git bisect run` does: by the exit code of the command."""

    def __init__(self, folder: Path, bad: str, good: str) -> None:
        self.folder, self.codes = folder, list[int]()
        self.said = git(folder, "bisect", "start", bad, good)

    def run(self, *words: str) -> str:
        """Until git is done; returns what it says."""
        while "is the first bad commit" not in self.said and "left to test.\n" not in self.said:
            code = main([*BISECT, *words])
            self.codes.append(code)
            if code > 127:
                return self.said
            word = {0: "good", 125: "skip"}.get(code, "bad")
            done = subprocess.run(
                ["git", "bisect", word], cwd=self.folder, capture_output=True, text=True, check=False, timeout=limit_s()
            )
            self.said = done.stdout + done.stderr
        return self.said


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test's repository goes, with the runs beside it."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project" / "repository"


def bisection(place: Path, monkeypatch: pytest.MonkeyPatch, *speeds: float | str) -> tuple[Bisection, list[str]]:
    commits = repository(place, *speeds)
    monkeypatch.chdir(place)
    return Bisection(place, commits[-1], commits[0]), commits


@pytest.mark.parametrize("guilty", [1, *(pytest.param(each, marks=pytest.mark.long) for each in (6, 16))])
def test_the_commit_that_made_it_slow_is_found(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], guilty: int
) -> None:
    made = stand_in_by_file(monkeypatch)
    speeds = [100 + i % 2 / 10 + 8 * (i >= guilty) for i in range(17)]
    bisect, commits = bisection(place, monkeypatch, *speeds)
    assert bisect.run().startswith(f"{commits[guilty]} is the first bad commit")
    assert set(bisect.codes) <= {0, 1} and len(bisect.codes) == 4
    assert len(made) <= 8 + 4 * 8, "four runs of each end once, then at most four of each in a step"
    of_ends = [each for each in commits_of(made) if each == commits[-1]]
    assert len(of_ends) == 4, "the bad end is measured once"
    assert len(git(place, "worktree", "list").splitlines()) == 1
    said = capsys.readouterr().out
    assert f"  looked for: {commits[-1][:7]} (c16): 8 % more time" in said.replace("8.1 %", "8 %").replace(
        "7.9 %", "8 %"
    )
    assert "repeats are chosen so that 0.5 % of such answers are wrong" in said


def test_if_good_and_bad_do_not_differ_no_commit_is_blamed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in_by_file(monkeypatch)
    bisect, _ = bisection(place, monkeypatch, *(100 + i % 2 / 20 for i in range(9)))
    said = bisect.run()
    assert "There are only 'skip'ped commits left to test." in said
    assert set(bisect.codes) == {125} and len(made) == 8, "the later steps find the runs of the first"
    assert "no difference between good and bad is certain: bad, " in capsys.readouterr().out.replace("\n", " ")


def test_a_commit_that_cannot_be_built_or_trained_is_skipped(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_by_file(monkeypatch)
    bisect, commits = bisection(place, monkeypatch, 100, 100, "no build", "broken", 120, 120, 120)
    said = bisect.run("--build", f"grep -qv build {SPEED}")
    assert "The first bad commit could be any of:" in said
    assert {each for each in commits if each in said.split("any of:")[1]} == {*commits[2:5]}
    assert bisect.codes.count(125) == 2
    told = " ".join(capsys.readouterr().out.split())
    assert "(c2): its build failed with exit status 1" in told
    assert "(c3): its training fails: B failed 2 times" in told


def test_if_an_end_of_the_bisect_cannot_be_trained_git_stops(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_by_file(monkeypatch)
    bisect, _ = bisection(place, monkeypatch, "broken", 100, 120, 120)
    bisect.run()
    assert bisect.codes == [128]
    assert "A failed 2 times, and was not started again" in capsys.readouterr().err


def test_a_commit_between_good_and_bad_is_skipped_after_the_most_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = stand_in_by_file(monkeypatch)
    bisect, commits = bisection(place, monkeypatch, 100, 100, 105, 110)
    said = bisect.run("--runs", "8")
    assert "The first bad commit could be any of:" in said and commits[2] in said and commits[3] in said
    assert commits_of(made).count(commits[2]) == 8
    assert "and 8 runs of each do not tell whether that is the regression" in " ".join(capsys.readouterr().out.split())


def test_a_metric_of_which_less_is_worse_is_judged_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_by_file(monkeypatch)
    bisect, commits = bisection(place, monkeypatch, 100, 100, 100, 125, 125)
    assert bisect.run("--metric", "tokens_per_s").startswith(f"{commits[3]} is the first bad commit")


def test_json_has_what_was_looked_for_and_what_was_found(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in_by_file(monkeypatch)
    bisection(place, monkeypatch, 100, 100, 125)
    assert main([*BISECT, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["metric"], told["size_runs"], told["runs"]) == ("good", "step_ns", 4, [2, 2])
    assert told["size"] == pytest.approx(1.25, rel=0.01) and told["ratio"] == pytest.approx(1, rel=0.01)
    assert [told[each].split()[1] for each in ("commit", "good", "bad")] == ["(c1)", "(c0)", "(c2)"]


def test_own_terms_and_a_bisect_without_checkout_are_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = repository(place, 100, 100, 100, 120, 120)
    git(place, "bisect", "start", "--term-old=fast", "--term-new=slow", "--no-checkout", commits[-1], commits[0])
    found = bisect_of(repository_of(place))
    assert (found.good.commit, found.bad.commit, found.now.commit) == (commits[0], commits[4], commits[2])
    assert found.commits == 4
    git(place, "bisect", "fast")
    found = bisect_of(repository_of(place))
    assert (found.good.commit, found.now.commit) == (commits[0], commits[3]), "the first good one stays the base"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--bisect", LAUNCH], "--bisect: a git bisect is not under way in {}: begin with git bisect start BAD GOOD"),
        (["--bisect"], "--bisect takes one launch in quotes"),
        (["--bisect", LAUNCH, LAUNCH], "--bisect takes one launch in quotes"),
        (["--bisect", LAUNCH, "--resume", "x"], "--bisect finds its runs itself"),
        (["--bisect", LAUNCH, "--rev", "main", "main"], "--bisect finds its runs itself"),
        (["--bisect", LAUNCH, "--junit", "x"], "--bisect finds its runs itself"),
        (["--bisect", "-e 1"], "--bisect takes a training of your own"),
        (["--bisect", LAUNCH, "--fail-above", "5"], "did you mean 5%?"),
        (["--bisect", LAUNCH, "--runs", "1"], "--runs"),
        (["--bisct", LAUNCH], "unknown flag --bisct: did you mean --bisect?"),
    ],
)
def test_a_wrong_request_stops_git_as_any_lower_code_would_blame_the_commit(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    made = stand_in_by_file(monkeypatch)
    repository(place, 100, 120)
    monkeypatch.chdir(place)
    assert main(["check", *words]) == 128
    assert sentence.format(place) in capsys.readouterr().err and not made


def test_an_error_of_ours_stops_git(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    repository(place, 100, 120)
    monkeypatch.chdir(place)
    monkeypatch.setattr("harness.cli.study.check_runs.bisect_of", broken)
    assert main(BISECT) == 128
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.train
def test_git_bisect_run_finds_the_commit_of_a_real_training(tmp_path: Path) -> None:
    """With the commands of docs/studies.md, from git itself to the runs."""
    folder = tmp_path / "project"
    real_bisect(folder)
    check = [sys.executable, "-m", "harness", "check", "--bisect", REAL_LAUNCH, "--runs", "8"]
    environ = os.environ | {"HARNESS_SITE": "local", "PYTHONPATH": str(Path(__file__).parents[2])}
    environ.pop("HARNESS_RUNS", None)
    done = subprocess.run(
        ["git", "bisect", "run", *check],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s(),
    )
    assert blamed(folder, done) == "c2"
    git(folder, "bisect", "reset")
    assert git(folder, "status", "--porcelain") == "" and (folder / "runs" / "own").is_dir()
