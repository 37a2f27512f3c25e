"""What the check refuses in tests (scripts/rules_of_tests.py), each beside what it lets pass."""

from __future__ import annotations

import pytest

from scripts.rules_of_tests import problems


@pytest.mark.parametrize(
    ("refused", "what"),
    [
        ("time.sleep(1)", "sleep without a reason"),
        ("process.wait()", ".wait() without a limit"),
        ("thread.join()", ".join() without a limit"),
        ("process.communicate()", ".communicate() without a limit"),
        ("subprocess.run(['true'], check=True)", "subprocess.run without a limit"),
        ("while not ready():\n    time.sleep(1)  # it is not ready", "a loop that polls"),
        ("def test():\n    a = time.monotonic()\n    assert time.monotonic() - a < 5", "an assertion about a duration"),
        ("def test():\n    a = time.time()\n    b = 2 * a\n    assert b < 5", "an assertion about a duration"),
    ],
)
def test_is_refused(refused: str, what: str) -> None:
    assert [said.partition(" →")[0] for _, said in problems(refused)] == [what]


@pytest.mark.parametrize(
    "passes",
    [
        "time.sleep(1)  # it takes long, which is what is tested",
        "# it takes long, which is what is tested\ntime.sleep(1)",
        "process.wait(timeout=limit_s())",
        "', '.join(words)",
        "event.wait(5)",
        "subprocess.run(['true'], timeout=limit_s())",
        "job.run('true')",
        "wait_until(file.exists, 'the file')",
        "def test():\n    now = time.time()\n    assert age_of(now) == 5",
        "def test():\n    a = time.time_ns()\n    assert recorded.ns <= time.time_ns() - a",
        "PROGRAM = 'import time\\ntime.sleep(9)'",
    ],
)
def test_passes(passes: str) -> None:
    assert list(problems(passes)) == []
