"""`check` of one launch under two environments: what each arm gets, what is judged, and how what differs is halved."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.analysis.summary import RunEnvironment, Summary
from harness.cli.main import main
from harness.common.run_folder.run_files import ENVIRONMENT
from harness.experiment.exercises import DDP, OwnTraining
from harness.run import Run, all_runs
from harness.run.record import SeriesPart
from harness.study.check.ends import ends_of, environments_of
from harness.study.check.halving import find_cause, most_checks, most_for_a_pair
from harness.study.check.series import CheckArm, MeasuredRun
from tests.study.check_shared import NOISE, Killed, some_runs, stand_in_for_training, write_metrics
from tests.study.kit import Say, completed
from tests.study.packages_shared import environment, site_of, wheel

LAUNCH = "-e 1 -g 1 -- --no-profile"
SIX = [f"NCCL_{name}" for name in ("ALGO", "PROTO", "NTHREADS", "BUFFSIZE", "P2P_LEVEL", "IB_HCA")]
NAMES = ("fast", "low", "mid", "slow", "other")  # of toy packages
Slower = Callable[[set[str]], float]


def trains(patch: pytest.MonkeyPatch, slower: Slower, killed_after: int | None = None) -> list[SeriesPart]:
    """From now on a run has steps of 100 ms, times what its variables make of it; returns the places as they are made.
    What makes it nothing fails."""

    def ms_of(part: SeriesPart, run: Run) -> float | None:
        ms = (100 + NOISE[(part.repeat + 3 * (part.point == "b")) % len(NOISE)]) * slower(
            {*run.record.site.env} & {*SIX}
        )
        return ms or None

    return stand_in_for_training(patch, ms_of, killed_after)


def python_of(run: Run) -> str:
    """The Python of a run of one's own."""
    asked = run.record.experiment
    assert isinstance(asked, OwnTraining) and asked.python is not None
    return asked.python


def sets(*names: str) -> list[str]:
    return [word for name in names for word in ("--set", f"{name}=1")]


# ---- Existing runs


def test_of_one_request_other_software_is_the_question_and_of_two_it_is_a_reason_to_refuse(
    runs: Path, say: Say
) -> None:
    a = some_runs(runs, 100, 100.3, 99.8)
    b = some_runs(runs, 150, 150.3, 149.8, first=4, versions={"torch": "2.14.0"})
    said = say("check", a, b)
    assert said.code == 1 and said.out.endswith("\n\nChanged: torch 2.13.0 → 2.14.0.\n"), said.out
    for run in all_runs()[3:]:
        run.write_record(run.record.model_copy(update={"experiment": DDP(micro_batch_size=1)}))
        run.summary.unlink()
    said = say("check", a, b)
    assert said.code == 3 and said.out.startswith("not comparable: A and B did not run on the same hardware and soft")


# ---- What each arm gets


def test_one_arm_has_the_variables_and_lacks_others_and_both_are_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    monkeypatch.setenv("NCCL_PROTO", "LL")
    trains(monkeypatch, lambda names: 1.2 if "NCCL_ALGO" in names else 1)
    said = say("check", *sets("NCCL_ALGO"), "--set", "NCCL_IB_HCA=mlx5 0", "--unset", "NCCL_PROTO", LAUNCH)
    what = "NCCL_ALGO=1, NCCL_IB_HCA=mlx5 0, without NCCL_PROTO"
    assert said.code == 1 and said.out.startswith(f"worse: {what} against as it is: the interval excludes")
    assert f"B: {what}: {LAUNCH}\n" in said.out and "Not comparable" not in said.out
    of_b, of_a = ([run for run in all_runs() if run.record.part and run.record.part.point == arm] for arm in "ba")
    assert not any({*run.record.site.env} & {*SIX} or run.record.site.setup for run in of_a) and len(of_a) == 4
    assert all(run.record.site.env["NCCL_ALGO"] == "1" for run in of_b)
    script = of_b[0].script.read_text()
    assert "unset NCCL_PROTO\n" in script and "NCCL_IB_HCA='mlx5 0'" in script


def test_the_command_that_continues_has_the_flags_of_both_environments(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    made = trains(monkeypatch, lambda names: 1 + 0.04 * len(names))
    words = ["--set", "NCCL_ALGO=a b", "--unset", "NCCL_PROTO", "--fail-above", "4%"]
    monkeypatch.setenv("NCCL_PROTO", "LL")
    found = say("check", *words, LAUNCH, "--runs", "2", "--json").json
    assert found["verdict"] == "cannot tell" and found["b"]["treatment"] == "NCCL_ALGO=a b, without NCCL_PROTO"
    again = shlex.split(found["next"])
    assert again[2:8] == ["check", *words[:4], LAUNCH] and again[-4:] == [*words[4:], "--resume", made[0].series]


def test_two_pythons_are_compared_though_their_packages_differ(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.launch.exercises.own.python_missing", lambda *_: iter(()))
    pythons = [tmp_path / name / "bin" / "python" for name in ("old", "new")]
    for python in pythons:
        python.parent.mkdir(parents=True)
        python.symlink_to("/usr/bin/python3")
    trains(monkeypatch, lambda _: 1)
    said = say("check", "--python", "old", str(pythons[1]), "run -g 1 --no-profile -- train.py", "--runs", "2")
    assert said.code == 0 and said.out.startswith(f"same: {pythons[1]} against old: "), said.words
    assert {python_of(run) for run in all_runs()} == {str(python) for python in pythons}


def test_modules_of_each_arm_replace_those_of_the_site_with_the_same_name(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say, tmp_path: Path
) -> None:
    site = {
        "name": "here",
        "description": "x",
        "scheduler": "local",
        "device": "cpu",
        "modules": ["gcc/12", "cuda/12.1"],
    }
    (tmp_path / "site.yaml").write_text(json.dumps(site))
    trains(monkeypatch, lambda _: 1)
    launch = f"-e 1 -g 1 --site {tmp_path}/site.yaml -- --no-profile"
    said = say("check", "--modules", "cuda/12.4", "cuda/12.6 nccl/2.27", launch, "--runs", "2")
    assert said.code == 0 and said.out.startswith("same: cuda/12.6 nccl/2.27 against cuda/12.4: "), said.words
    loaded = {re.findall("module load (.*)", run.script.read_text())[0] for run in all_runs()}
    assert loaded == {"gcc/12 cuda/12.4", "gcc/12 cuda/12.6 nccl/2.27"}


def test_with_a_stand_in_for_training_the_package_of_two_requirements_files_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say, tmp_path: Path
) -> None:
    """Five toy packages differ, and steps are as slow as the installed `slow` says, if it finds the new `low`."""
    for name, version in itertools.product(NAMES, ("1.0", "2.0")):
        wheel(tmp_path / "wheels", name, version)
    for number in (1, 2):
        lines = ["--no-index", f"--find-links {tmp_path}/wheels", *(f"{name}=={number}.0" for name in NAMES)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setattr("harness.launch.exercises.own.python_missing", lambda *_: iter(()))

    def ms_of(part: SeriesPart, run: Run) -> float:
        site = site_of(python_of(run))
        is_slow = all((site / f"{name}-2.0.dist-info").exists() for name in ("low", "slow"))
        return (100 + NOISE[part.repeat + 3 * (part.point == "b")]) * (1.2 if is_slow else 1)

    stand_in_for_training(monkeypatch, ms_of)
    launch = "run -g 1 --no-profile -- train.py"
    said = say("check", "--requirements", "1.txt", "2.txt", "--which", "--yes", launch)
    assert said.code == 1 and said.out.startswith("worse: 2.txt against 1.txt: "), said.words
    assert re.search(r"slow 1.0 → 2.0 and low 1.0 → 2.0 together cost \d\d.\d ms of 120 ms a step", said.words), (
        said.words
    )
    kept = sorted((runs / "environments").iterdir())
    assert len({python_of(run) for run in all_runs()}) == len(kept), "none is made that is not used"
    (tmp_path / "3.txt").write_text(f"--no-index\n--find-links {tmp_path}/wheels\nslow==3.0")
    said = say("check", "--requirements", "1.txt", "3.txt", launch)
    assert said.code == 2 and re.search(r"3.txt: uv cannot make an environment of it \(.*slow==3.0", said.err)
    assert sorted((runs / "environments").iterdir()) == kept


# ---- Halving


@pytest.mark.parametrize("number", range(2, 20))
def test_each_single_cause_and_each_pair_is_found_with_as_many_checks_as_were_said(number: int) -> None:
    for cause in [*itertools.combinations(range(number), 1), *itertools.combinations(range(number), 2)]:
        asked: list[Sequence[int]] = []

        def loss(chosen: Sequence[int], cause: Sequence[int] = cause, asked: list[Sequence[int]] = asked) -> float:
            asked.append(chosen)
            return float({*cause} <= {*chosen})

        found = find_cause(number, loss)
        most = most_checks(number) + most_for_a_pair(number) * (len(cause) > 1)
        assert (found.all, found.is_enough) == ([*cause], True) and 1 + len(asked) <= most


def test_a_thing_that_cannot_run_without_others_is_tried_with_them_and_named_alone() -> None:
    def loss(chosen: Sequence[int]) -> float | None:
        return None if 4 in chosen and 1 not in chosen else float(4 in chosen)

    assert find_cause(8, loss, lambda thing: [1, 4] if thing == 4 else [thing]).all == [4]


CAUSES: list[tuple[Slower, str]] = [
    (lambda names: 1.2 if "NCCL_BUFFSIZE" in names else 1, r"NCCL_BUFFSIZE=1 costs \d\d\.\d ms of 1\d\d ms"),
    (
        lambda names: 1.2 if {"NCCL_ALGO", "NCCL_BUFFSIZE"} <= names else 1,
        r"NCCL_BUFFSIZE=1 and NCCL_ALGO=1 together cost .* without NCCL_ALGO=1 costs nothing",
    ),
    (
        lambda names: (1.1 if "NCCL_PROTO" in names else 1) * (1.15 if "NCCL_IB_HCA" in names else 1),
        r"^NCCL_IB_HCA=1 costs 1[45]\.\d+ ms .* Something else costs another (9|10)\.\d+ %: give B A's NCCL_IB",
    ),
    (
        lambda names: {0: 1, 1: 0, 2: 1.2}[len(names & {"NCCL_NTHREADS", "NCCL_BUFFSIZE"})],
        r"NCCL_NTHREADS=1, NCCL_BUFFSIZE=1 cost .* These 2 things could not be taken apart",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CAUSES)
def test_with_a_stand_in_for_training_the_cause_is_named_with_what_it_costs(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say, case: tuple[Slower, str]
) -> None:
    trains(monkeypatch, case[0])
    said = say("check", *sets(*SIX), "--which", "--yes", LAUNCH)
    told = " ".join(said.out.partition("larger than 5 %")[2].partition("\n\n")[0].split())
    assert said.code == 1 and re.search(case[1], told), said.out
    assert "6 things differ:\n  NCCL_ALGO=1\n" in said.err and "at most 5 checks, and 4 more if" in said.err
    assert "for the 5: 40 runs, at most " in said.err


def test_with_a_stand_in_for_training_existing_runs_are_the_ends_and_their_recorded_variables_are_halved(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    recorded = {"a": dict.fromkeys(SIX[1:], "0"), "b": dict.fromkeys(SIX, "1")}
    for number, arm in enumerate("aaabbb", 1):
        run = completed(runs, f"local-{number}", DDP(gpus_per_node=1, profiler="none"))
        write_metrics(run.path, (100 if arm == "a" else 120) + NOISE[number])
        about = {"host": "n0", "node": 0, "packages": {"torch": "2"}, "used": ["torch"], "modules": [], "system": {}}
        ENVIRONMENT.path(run.path, "n0-0").parent.mkdir()
        ENVIRONMENT.path(run.path, "n0-0").write_text(json.dumps({**about, "variables": recorded[arm]}))

    def ms_of(part: SeriesPart, run: Run) -> float:
        return (100 + NOISE[part.repeat]) * (1.2 if run.record.site.env.get("NCCL_P2P_LEVEL") == "1" else 1)

    made = stand_in_for_training(monkeypatch, ms_of)
    words = ["check", "local-1,local-2,local-3", "local-4,local-5,local-6"]
    said = say(*words, "--which", "--yes")
    assert said.code == 1 and "\nNCCL_P2P_LEVEL 0 → 1 costs 20" in said.out, said.words
    assert "6 things differ:\n  NCCL_PROTO 0 → 1\n" in said.err and "\n  NCCL_ALGO unset → 1\n" in said.err
    assert "Changed: NCCL_PROTO 0 → 1, " in said.words and "NCCL_ALGO not set → 1." in said.words
    of_a = next(run for run in all_runs() if run.record.part and run.record.part.point == "a")
    assert of_a.record.site.setup == ["unset NCCL_ALGO"] and of_a.record.site.env["NCCL_PROTO"] == "0"
    name = made[0].series.partition(".")[0]
    again = stand_in_for_training(monkeypatch, ms_of)
    assert say(*words, "--which", "--yes", "--resume", name).code == 1 and not again


def test_a_python_that_was_updated_since_its_runs_is_made_again_from_what_they_recorded(
    runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", "fast", version)
    python = environment(tmp_path / "mine", tmp_path / "wheels", ["fast==2.0"])
    for name, text in {"UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": f"{tmp_path}/wheels"}.items():
        monkeypatch.setenv(name, text)

    def arm(version: str) -> CheckArm:
        packages = {"fast": version, "of-pythonpath": "7"}
        recorded = RunEnvironment(nodes=["n0"], packages=packages, system={"executable": python})
        return CheckArm(version, [MeasuredRun("local-1", Summary(environments=[recorded]))], [])

    wheel(tmp_path / "wheels", "of-pythonpath", "7")
    old, new = environments_of(arm("1.0"), arm("2.0"))
    assert new.python == python and old.python is not None and old.python.startswith(f"{runs}/environments/made-")
    assert (site_of(old.python) / "fast-1.0.dist-info").is_dir() and (site_of(python) / "fast-2.0.dist-info").is_dir()
    assert [thing.label for thing in ends_of(old, new).things] == ["fast 1.0 → 2.0", "removed: of-pythonpath 7"]


def test_if_a_fails_in_a_step_the_halving_ends_and_nothing_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    def ms_of(part: SeriesPart, run: Run) -> float | None:
        if "." in part.series and part.point == "a":
            return None
        return (100 + NOISE[part.repeat]) * (1.2 if "NCCL_ALGO" in run.record.site.env else 1)

    stand_in_for_training(monkeypatch, ms_of)
    said = say("check", *sets(*SIX), "--which", "--yes", LAUNCH)
    assert said.code == 3 and "A failed 2 times, and was not started again" in said.err and said.out == ""


def test_what_is_not_slower_is_not_halved(runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    made = trains(monkeypatch, lambda _: 1)
    said = say("check", *sets(*SIX), "--which", "--yes", LAUNCH)
    assert said.code == 0 and len(made) == 8
    assert "--which: nothing was halved, since it is not known that B is worse (same)" in said.words


def test_a_halving_that_was_killed_goes_on_with_the_runs_it_has(
    runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say
) -> None:
    words = ["check", *sets(*SIX), "--which", "--yes", LAUNCH, "--json"]
    made = trains(monkeypatch, CAUSES[0][0], killed_after=13)
    with pytest.raises(Killed):
        main(words)
    more = trains(monkeypatch, CAUSES[0][0])
    found = say(*words, "--resume", made[0].series).json["which"]
    assert found["cause"] == ["NCCL_BUFFSIZE=1"] and found["low"] < 0.2 * 100e6 < found["high"]
    assert len(made) == 13 and len(more) == 8 * (1 + len(found["steps"])) - 13
    assert {part.series.partition(".")[0] for part in (*made, *more)} == {made[0].series}


def test_runs_that_vary_too_much_name_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch, say: Say) -> None:
    def ms_of(part: SeriesPart, run: Run) -> float:
        wild = 20 if "." in part.series else 1
        return (100 + wild * NOISE[(part.repeat * 3 + (part.point == "b")) % 8] * 5) * (
            1.2 if "NCCL_ALGO" in run.record.site.env else 1
        )

    stand_in_for_training(monkeypatch, ms_of)
    said = say("check", *sets(*SIX), "--which", "--yes", LAUNCH)
    assert said.code == 3 and "vary too much to tell the parts of the loss" in said.err and said.out == ""
