"""Exercise 0 with one test, --health or --overlap-test; what cannot be is refused in one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.launch.launch_shared import Harness


def commands(harness: Harness, *words: str) -> list[list[str]]:
    """The words of each program that the launch would run, without what comes before the part of comm_tests.py."""
    done = harness(*words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    job: dict[str, Any] = json.loads(done.stdout)
    argvs = [[str(word) for word in each["argv"]] for each in (*job["commands"], *job["after"])]
    return [argv[next(k for k, word in enumerate(argv) if word.endswith("comm_tests.py")) + 1 :] for argv in argvs]


def test_health_is_exercise_0_with_its_node_tests(harness: Harness) -> None:
    parts = commands(harness, "-e", "0", "--health", "-n", "2", "-g", "1", "--slow-rank", "1")
    assert [part[0] for part in parts] == ["topology", "health", "answer"]
    assert "--quiet" in parts[0] and parts[1][-2:] == ["--slow-rank", "1"]
    assert parts[2][3:] == ["health", "--nodes", "2"]
    assert parts == commands(harness, "-e", "0", "-n", "2", "-g", "1", "--", "--health", "--slow-rank", "1")


def test_the_overlap_test_is_one_program_and_its_answer(harness: Harness) -> None:
    parts = commands(harness, "-e", "0", "--overlap-test", "-g", "2")
    assert [part[0] for part in parts] == ["overlap", "answer"]


def test_the_health_check_knows_the_sites_links(harness: Harness) -> None:
    parts = commands(harness, "-e", "0", "--health", "-n", "2", "--site", "leonardo")
    assert "--link-gbps-inter" in parts[1] and "--expected-rate-gbps" in parts[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-e", "0", "--health", "--overlap-test"], "--health and --overlap-test exclude each other: drop one"),
        (
            ["-e", "0", "--health", "--max-bytes", "4"],
            "--max-bytes is the largest message of the collectives, and --health runs none of them: drop one",
        ),
        (["-e", "0", "--slow-rank", "1"], "--slow-rank slows the probes of --health: add --health, or drop it"),
        (["-e0", "--health", "-g", "2", "--slow-rank", "2"], "--slow-rank 2: the ranks are 0 to 1: the nearest is 1"),
        (["-e0", "--health", "--slow-rank", "-1"], "--slow-rank: got '-1', takes a whole number ≥ 0; the nearest is 0"),
        (
            ["-e", "1", "--health"],
            "--health belongs to exercise 0 (communication tests), not to exercise 1 (DDP): drop it or use -e 0",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(harness: Harness, words: list[str], sentence: str) -> None:
    done = harness(*words, "--dry-run")
    assert done.returncode == 2 and done.stdout == ""
    assert [line for line in done.stderr.splitlines() if not line.startswith("site:")] == [f"slurm.sh: {sentence}"]
