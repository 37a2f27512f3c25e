"""`slurm.sh check`: which runs, in which order, and what it says of them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.common.errors import RequestError, WorkError
from harness.common.system.programs import ask
from harness.experiment.exercises import DDP
from harness.launch.submit import Start
from harness.run import Run, all_runs
from harness.run.record import SeriesPart
from harness.site.site import load_site
from harness.study.check.series import ArmLaunch, arms_of_runs, block_of, slots, submitter_of, tasks_of
from tests.study.check_shared import (
    LAUNCH,
    SPEED,
    Killed,
    commit,
    commits_of,
    folder_of,
    git,
    repository,
    some_runs,
    stand_in_by_file,
    stand_in_for_training,
    write_metrics,
)
from tests.study.kit import Say, completed

A, B = "-e 1 -g 1 -- --no-profile", "-e 1 -g 1 -- --no-profile --micro-batch-size 1"
NOISE = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, 0.0, -0.1)  # ms


# ---- The order


def test_the_order_is_abba_and_more_runs_keep_the_first_ones() -> None:
    assert "".join(slot.key for slot in slots(4)) == "abbabaab"
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(map(slots, range(1, 9))))
    assert len(set(slots(7))) == 14
    assert [block_of(slot.repeat) for slot in slots(4)] == [0] * 4 + [1] * 4


# ---- Runs that are there


@pytest.mark.parametrize(
    ("b", "code", "said"),
    [
        ((100.2, 100.0, 99.9, 100.1), 0, r"^same: .*"),
        ((112, 111.5, 112, 111.8), 1, r"\n  step time +100 ms +112 ms +\+11\.8 % ± \d\.\d % +worse\n"),
        ((99, 104), 3, r"^cannot tell: the interval contains both no change and a change of 5 %\n"),
        ((99, 104), 3, r"\nabout \d+ runs of each would tell:\n  bash slurm.sh check '-e 1' '-e 1' --runs \d+\n"),
        ((200,), 1, r"step time +100 ms +200 ms +\+99\.9 % ± \d\.\d % +worse\n"),
    ],
)
def test_the_exit_status_is_the_verdict_and_the_text_begins_with_it(
    runs: Path, say: Say, b: tuple[float, ...], code: int, said: str
) -> None:
    words = ["check", some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, *b, first=5)]
    shown = say(*words)
    assert shown.code == code and re.search(said, shown.out), shown.out
    assert [run["value"] for run in say(*words, "--json").json["a"]["runs"]] == [100e6, 100.3e6, 99.8e6, 100.1e6]
    single = say("check", "local-1", "local-5")
    assert (
        single.out.startswith("cannot tell: one run of each does not show how much runs vary") and "±" not in single.out
    )


@pytest.mark.parametrize(
    ("start", "differs"),
    [
        ({"device_name": "another CPU"}, [("devices", "1 × another CPU")]),
        ({"model": "other"}, [("model", "other")]),
        ({"host_cpu": "x"}, []),
    ],
)
def test_across_hardware_and_models_nothing_is_judged_and_what_some_runs_did_not_record_is_said(
    runs: Path, say: Say, start: dict[str, object], differs: list[tuple[str, str]]
) -> None:
    a = some_runs(runs, 100, 100.3, 99.8)
    words = ["check", a, some_runs(runs, 150, 150.3, 149.8, first=4, **start)]
    found = say(*words, "--json")
    assert [(row["name"], row["b"]) for row in found.json["key_differs"]] == differs
    assert found.json["ratio"] == pytest.approx(1.5, abs=0.01)
    assert (found.code, found.json["verdict"]) == ((3, "not comparable") if differs else (1, "worse"))
    expected = "Not comparable: these differ" if differs else "some runs did not record host processor"
    assert expected in say(*words).out


def metrics_changed(runs: Sequence[Run], pattern: str, new: str, count: int = 0) -> None:
    for run in runs:
        file = run.path / "metrics" / "rank0.jsonl"
        file.write_text(re.sub(pattern, new, file.read_text(), count=count))


def test_a_change_that_hits_few_steps_is_not_hidden_by_the_median(runs: Path, say: Say) -> None:
    arms = some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, 100.1, 100.2, 99.9, 100, first=5)
    metrics_changed(all_runs()[4:], r'"step_ns": \d+', '"step_ns": 300000000', count=1)
    found = say("check", *arms)
    assert found.code == 0 and "B's mean step is worse (" in found.words and "--metric mean_step_ns" in found.words
    assert say("check", *arms, "--metric", "mean_step_ns").code == 1


def test_steps_with_other_numbers_of_tokens_are_judged_per_token(runs: Path, say: Say) -> None:
    arms = some_runs(runs, 100, 100.3, 99.8, 100.1), some_runs(runs, 200.2, 200.1, 199.7, 200, first=5)
    metrics_changed(all_runs()[4:], '"tokens": 16', '"tokens": 32')
    found = say("check", *arms, "--json")
    assert (found.code, found.json["metric"]) == (0, "step_ns_per_token")
    assert "per token, since a step is not the same work: 16 and 32 tokens" in found.json["notes"]
    assert say("check", *arms, "--metric", "tokens_per_s").code == 0


def test_runs_that_did_not_complete_are_left_out_and_named(runs: Path, say: Say) -> None:
    words = ["check", some_runs(runs, 100, 100.3, 99.8), some_runs(runs, 100, 100.3, 99.8, first=4), "--json"]
    failed = all_runs()[0]
    own = failed.status()
    assert own is not None
    failed.write_status(own.model_copy(update={"state": "failed"}))
    found = say(*words).json
    assert [run["run"] for run in found["a"]["runs"]] == ["local-2", "local-3"]
    assert "local-1 is left out: it is not complete (failed)" in found["notes"]


def test_a_series_names_its_runs_and_one_with_several_settings_needs_the_setting(runs: Path) -> None:
    for number, place in enumerate(("sweep-1:mbs=1", "sweep-1:mbs=1", "sweep-1:mbs=2", "sweep-1:mbs=2", "alone:x")):
        run = completed(runs, f"local-{number}", DDP())
        part = SeriesPart(series=place.partition(":")[0], point=place.partition(":")[2], repeat=number)
        run.write_record(run.record.model_copy(update={"part": part}))
        write_metrics(run.path, 100 + number / 10)
    arms = arms_of_runs(("sweep-1:mbs=1", "alone"))
    assert [[run.name for run in arm.runs] for arm in arms] == [["local-0", "local-1"], ["local-4"]]
    with pytest.raises(RequestError, match=r"has 2 settings: name one of them, as in sweep-1:mbs=1, sweep-1:mbs=2"):
        arms_of_runs(("sweep-1", "alone"))


TIMES = (2500, 4100, 4110, 2510, 4090, 4100, 2490, 4105)  # ms


def on_nodes(root: Path, slow: str, first: int) -> str:
    """Runs of those times as an arm's word, the slow ones on that node."""
    for number, ms in enumerate(TIMES, first):
        some_runs(root, ms, first=number, host=slow if ms > 3000 else "n0")
    return ",".join(f"local-{number}" for number in range(first, first + len(TIMES)))


@pytest.mark.parametrize(("node", "fact"), [("n7", "; all slow ones on n7"), ("n0", "")])
def test_two_groups_of_runs_are_said_before_the_verdicts_reason(
    runs: Path, tmp_path: Path, say: Say, node: str, fact: str
) -> None:
    a, file = some_runs(runs, 2500, 2900, 3300, 3700), tmp_path / "check.md"
    words = ["check", a, on_nodes(runs, node, first=5)]
    found = say(*words, "--markdown", str(file))
    groups = f"B falls into two groups: 3 of 8 runs take 2.50 s, 5 take 4.10 s{fact}. "
    assert found.code == 3 and found.words.startswith(f"cannot tell: {groups}The interval contains both no change")
    assert file.read_text().startswith(f"**cannot tell**: {groups}")
    document = say(*words, "--json").json
    assert document["why"].startswith(groups) and document["b"]["groups"]["counts"] == [3, 5]
    assert document["a"]["groups"] is None


# ---- Runs that it makes


def test_with_a_stand_in_for_training_both_launches_run_in_turn_and_are_judged_in_blocks(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    """The second block is on a machine that is half as slow again."""
    made = stand_in_for_training(
        monkeypatch,
        lambda part, _: (100 + NOISE[part.repeat]) * (1 + part.repeat // 2 / 2) * (1.12 if part.point == "b" else 1),
    )
    found = say("check", A, A, "--json")
    assert "".join(part.point for part in made) == "abbabaab" and len({part.series for part in made}) == 1
    assert (found.code, found.json["verdict"], found.json["in_blocks"]) == (1, "worse", True)
    assert 1.11 < found.json["low"] < found.json["high"] < 1.13
    assert {tuple(run.record.command) for run in all_runs()} == {("slurm.sh", *A.split())}
    assert all(run.summary.is_file() for run in all_runs())


def test_what_was_asked_differently_is_shown(runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    stand_in_for_training(monkeypatch, lambda part, _: 100 + NOISE[part.repeat])
    said = say("check", A, B)
    assert said.code == 0 and re.search(r"Settings that differ\n +A +B\n +micro_batch_size +– +1\n", said.out), said.out


def test_a_check_that_was_killed_goes_on_with_the_runs_it_has(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    made = stand_in_for_training(monkeypatch, lambda part, _: 100 + NOISE[part.repeat], killed_after=3)
    with pytest.raises(Killed):
        main(["check", A, A])
    series = made[0].series
    for words, places in (
        ([A, A, "--resume", series], "a1 b2 a2 a3 b3"),
        ([A, A, "--resume", series, "--runs", "6"], "a4 b4 b5 a5"),
    ):
        more = stand_in_for_training(monkeypatch, lambda part, _: 100 + NOISE[part.repeat])
        said = say("check", *words)
        assert said.code == 0 and said.err.startswith(f"{series}: ")
        assert " ".join(f"{part.point}{part.repeat}" for part in more) == places
    said = say("check", A, B, "--resume", series)
    assert said.code == 2 and "was made with other settings (" in said.err and "give A and B as before" in said.err


def test_the_command_that_would_tell_goes_on_with_the_same_runs_and_says_what_they_cost_at_most(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    made = stand_in_for_training(monkeypatch, lambda part, _: 100 + 20 * NOISE[part.repeat + 2 * (part.point == "b")])
    said = say("check", A, A, "--fail-above", "4%")
    assert said.code == 3 and "to make: 8 runs, at most " in said.err
    after = " ".join(said.out.partition("runs of each would tell:\n")[2].split())
    needed = int(re.findall(r"--runs (\d+)", after)[0])
    again = f"bash slurm.sh check '{A}' '{A}' --runs {needed} --fail-above 4% --resume {made[0].series}"
    assert needed > 4 and after.startswith(f"{again} to make: {2 * (needed - 4)} runs, at most ")


FAILING = [
    (("b1",), [], 0, "local-3 is left out: failed (bash slurm.sh logs local-3)"),
    (("b1",), ["--runs", "2"], 3, "B: fewer than two runs completed; continue with: bash slurm.sh check"),
    (("b0", "b1"), ["--runs", "8"], 3, "B failed 2 times, and was not started again: bash slurm.sh logs local-3"),
    (("b0", "b1"), [], 3, "its runs are kept; continue with: bash slurm.sh check"),
]


@pytest.mark.parametrize("case", FAILING)
def test_a_run_that_fails_is_named_and_an_arm_that_only_fails_is_not_tried_for_ever(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say, case: tuple[tuple[str, ...], list[str], int, str]
) -> None:
    fails, words, code, sentence = case
    made = stand_in_for_training(
        monkeypatch, lambda part, _: None if f"{part.point}{part.repeat}" in fails else 100 + NOISE[part.repeat]
    )
    said = say("check", A, A, *words)
    assert said.code == code and sentence in said.words
    if code:
        assert said.out == "" and len(made) <= 4


@pytest.mark.parametrize(
    ("most", "expected"), [(6, ["abbaba"]), (4, ["abbaba", "abba"]), (1, ["abbaba", "abba", "alone"])]
)
def test_with_a_stand_in_for_sbatch_all_runs_share_an_allocation_else_a_block_does_else_each_has_its_own(
    runs: Path, monkeypatch: pytest.MonkeyPatch, most: int, expected: list[str]
) -> None:
    asked: list[str] = []

    def start(starts: Sequence[Start], _way: str, _at_once: int) -> list[Run]:
        asked.append("".join(start.part.point for start in starts if start.part))
        if len(starts) > most:
            raise WorkError("sbatch: time limit exceeds the partition's")
        return [Run(runs)] * len(starts)

    def alone(*_: object) -> Run:
        asked.append("alone")
        return Run(runs)

    monkeypatch.setattr("harness.study.series.runner.start_together", start)
    monkeypatch.setattr("harness.study.series.runner.start_run", alone)
    launch = ArmLaunch(["-e", "1"], DDP(nodes=2), load_site("leonardo"))
    tasks = tasks_of({"a": launch, "b": launch}, 3)
    submitter = submitter_of(tasks)
    assert submitter.together(tasks) == 6 and submitter.room(1) == 0
    submitter.start("s", tasks)
    assert asked == expected


# ---- Two revisions of the user's repository, each in a worktree of its own


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
    assert again == f"bash slurm.sh check --rev {a[:12]} {b[:12]} '{LAUNCH}' --runs 4", "of existing runs, too"
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


@pytest.mark.long  # a minute: it trains until it is interrupted, and then again
def test_ctrl_c_while_it_trains_removes_the_worktrees_and_says_how_to_go_on(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    def interrupt(_: Run) -> None:
        signal.raise_signal(signal.SIGTERM if len(made) == 3 else signal.SIGURG)

    made = stand_in_by_file(monkeypatch, interrupt)
    said = say("check", "--rev", "main~2", "main", LAUNCH)
    again = re.search(r"continue with: bash slurm.sh check (.*) --resume (\S+)", said.err)
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
def test_markdown_has_the_verdict_and_a_subject_of_a_commit_can_do_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say, b: tuple[str, float]
) -> None:
    stand_in_by_file(monkeypatch)
    commit(project, *b)
    markdown = tmp_path / "check.md"
    said = say("check", "--rev", "main~3", "main", LAUNCH, "--markdown", str(markdown))
    is_worse = b[1] > 100
    assert said.code == is_worse and "\x1b" not in said.out and not list(tmp_path.rglob("hacked"))
    text = markdown.read_text()
    assert text.startswith("**worse**: " if is_worse else "**same**: ")
    assert is_worse or r"\$(touch hacked) \<img src=x\> \| \`x\`" in text
    assert f"| B | {git(project, 'rev-parse', '--short', 'main')} (" in text.replace("\\", "")


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
    (tmp_path / "training-traces").mkdir()
    asked = "check --rev v1.2 HEAD run -g 2 -- train.py"
    (tmp_path / "training-traces" / "slurm.sh").write_text(f'test "$*" = "{asked}" || exit 1; exit $(cat {SPEED})\n')
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
