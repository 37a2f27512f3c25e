"""Exercise 0 with --health."""

from __future__ import annotations

import json
from typing import Any

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
    assert parts[2][3:] == ["--nodes", "2"]
    assert parts == commands(harness, "-e", "0", "-n", "2", "-g", "1", "--", "--health", "--slow-rank", "1")


def test_the_health_check_knows_the_sites_links(harness: Harness) -> None:
    parts = commands(harness, "-e", "0", "--health", "-n", "2", "--site", "leonardo")
    assert "--link-gbps-inter" in parts[1] and "--expected-rate-gbps" in parts[2]
