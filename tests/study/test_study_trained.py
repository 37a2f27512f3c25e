"""Real trainings on this machine: every lesson that a CPU can show, as a student does it, and a reference that is
recorded, held against what it was, and damaged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.experiment.exercises import DDP
from harness.study.lessons import lesson_names, load_lesson
from harness.study.reference.stored import read_reference, read_runs
from harness.study.relations import RelationOutcome
from tests.planted import leaks, planted
from tests.study.kit import completed
from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
YES, CANNOT = RelationOutcome.HOLDS, RelationOutcome.NOT_COMPARABLE
# Where times are compared, any outcome will do.
TIMED = re.compile(r"\w+_ns|\w+_share|bubble|overlap_fraction")
SHORT = {"1a", "1d", "1f", "1g", "1h", "1i", "2a", "2b", "2e", "3a", "3b"}
OUTCOMES: dict[str, list[RelationOutcome]] = {
    **{name: [YES, YES] for name in ("1a", "1c", "1d", "1f", "1g", "1i", "3a", "3b", "3c", "3d", "4a", "4b")},
    **{name: [YES, CANNOT] for name in ("1b", "1h", "2b")},
    **{name: [YES, YES, YES] for name in ("1o", "2a")},
    "1p": [YES, YES, YES, CANNOT],
    "2e": [YES, YES, CANNOT],
}

PLANTED = planted("for-a-reference")
LIST = """
name: short
title: One short run
device: cpu
variants:
  - name: ddp
    asks: {exercise: 1, gpus_per_node: 2, skip_steps: 1, wait_steps: 0, warmup_steps: 1, active_steps: 3}
"""

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the lessons: 1a and 1b begin with the same run, and so do 3c and 3d; 3a ends with 3b's first."""
    return tmp_path_factory.mktemp("lessons")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This machine with a shorter window, for what is the same in every step and for what no load hides."""
    site = yaml.safe_load((ROOT / "configs/sites/local.yaml").read_text(encoding="utf-8"))
    window = {"skip_steps": 1, "wait_steps": 0, "warmup_steps": 1, "active_steps": 3}
    path = tmp_path_factory.mktemp("site") / "short.yaml"
    path.write_text(yaml.safe_dump(site | {"name": "short", "defaults": window}), encoding="utf-8")
    return str(path)


def harness(runs: Path, *words: str, site: str = "local") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **PLANTED, "HARNESS_RUNS": str(runs), "HARNESS_SITE": site, "CUDA_VISIBLE_DEVICES": ""}
    env.pop("HARNESS_REFERENCES", None)
    argv = [sys.executable, "-m", "harness", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=limit_s(600))


# Long, all but one: they train with other settings, and answer from those runs in the same way.
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each == "1d" else pytest.mark.long) for each in sorted(OUTCOMES)]
)
def test_the_answer_comes_from_the_students_own_runs(runs: Path, short: str, name: str) -> None:
    site = short if name in SHORT else "local"
    begun = harness(runs, "lesson", name, site=site)
    assert begun.returncode == 0, begun.stderr[-3000:]
    assert name not in ("4a", "4b") or not re.search("--fault|Stuck|rank 1|Traceback", begun.stdout + begun.stderr)
    done = harness(runs, "lesson", name, "--answer", "--json", site=site)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)["answers"]
    asked = load_lesson(name)
    relations = (asked.on_cpu and asked.on_cpu.relations) or asked.relations
    for answer, relation, outcome in zip(answers, relations, OUTCOMES[name], strict=True):
        assert answer["says"] == relation.says
        if TIMED.search(relation.holds):
            assert answer["outcome"] in {each.value for each in RelationOutcome}
        else:
            assert answer["outcome"] == outcome.value, answer


def test_the_list_shows_what_is_done_at_this_site(runs: Path, short: str) -> None:
    rows = json.loads(harness(runs, "lesson", "--json", site=short).stdout)
    assert [r["name"] for r in rows] == lesson_names()
    assert {r["name"] for r in rows if r["a"] and r["b"]} >= {"1d"}
    refused = {r["name"]: r["refused"] for r in rows if r["refused"]}
    assert "there is no step 5, the steps are 0 to 4" in refused.pop("4a"), "the window of this site is short"
    assert set(refused) <= {"4b"}


def test_on_a_cluster_nothing_is_submitted_unasked(tmp_path: Path) -> None:
    done = harness(tmp_path, "lesson", "1a", "--site", "leonardo")
    assert "next: bash slurm.sh lesson 1a --site leonardo --run" in done.stdout and not list(tmp_path.iterdir())


def test_again_starts_the_pair_anew_although_there_is_one(tmp_path: Path) -> None:
    """At a site where every job fails at once: a start is seen, and nothing trains."""
    site = yaml.safe_load((ROOT / "configs/sites/local.yaml").read_text(encoding="utf-8"))
    path, runs = tmp_path / "failing.yaml", tmp_path / "runs"
    path.write_text(yaml.safe_dump(site | {"setup": ["exit 3"]}), encoding="utf-8")
    completed(runs, "1", DDP())
    completed(runs, "2", DDP(slow_dataloading=True))
    assert "ready: 1 and 2" in harness(runs, "lesson").stdout
    done = harness(runs, "lesson", "1a", "--again", "--site", str(path))
    assert done.returncode == 1
    assert f"running: bash slurm.sh -e 1 --site {path}" in done.stderr


@pytest.mark.long  # two trainings; test_reference_store.py has the same of runs that are made
def test_a_reference_is_recorded_checked_and_damaged(tmp_path: Path) -> None:
    runs, names = tmp_path / "runs", tmp_path / "short.yaml"
    names.write_text(LIST, encoding="utf-8")
    record = ("record", "--list", str(names), "--name", "real", "--yes", "--repeats", "2")

    whole = harness(runs, "reference", *record)
    assert whole.returncode == 0, whole.stderr
    assert "real: kept 2 runs of 1 variant in" in whole.stdout

    folder = runs / "references" / "real"
    kept = read_reference(folder)
    first_run, second_run = read_runs(folder, kept.variants[0]).runs
    assert first_run.metrics["all_reduce_bytes"] == second_run.metrics["all_reduce_bytes"] == 1247488
    assert (kept.environments[0].software["torch"], len(kept.environments)) == ("2.13.0+cpu", 1)

    again = harness(runs, "reference", "check", str(runs / second_run.path), "--against", "real")
    assert "counts and bytes are the same" in " ".join(again.stdout.split()), again.stdout + again.stderr

    assert leaks(tmp_path, PLANTED) == []  # runs, logs, the controller's own files and the reference

    trace = next((runs / second_run.path / "torch").glob("rank1*"))
    trace.write_bytes(trace.read_bytes()[:-1000])
    cut = harness(runs, "reference", "check", str(runs / second_run.path), "--against", "real")
    assert cut.returncode == 1
    assert "trace damaged" in " ".join(cut.stdout.split()), cut.stdout
