"""The test command's runner (scripts/run_tests.py): nothing makes it wait for ever, and nothing that did not run is
counted as passed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.waiting import limit_s, wait_until

ROOT = Path(__file__).parents[2]
STARTS = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "scripts")!r}]
import run_tests
run_tests.TEST_LIMIT_S, run_tests.LEFTOVERS_S = 2.0, 3.0
argv = [sys.executable, "-m", "pytest", "-p", "tests.part", "--timeout=2", "-q", "--continue-on-collection-errors"]
parts = [run_tests.Part(Path(each).stem, [*argv, each]) for each in sys.argv[2:]]
sys.exit(run_tests.Run(parts, Path(sys.argv[1])).all())
"""


class Ran(NamedTuple):
    """What the runner printed, its last line, and its exit code."""

    output: str
    last: str
    code: int


def ran(folder: Path, **files: str) -> Ran:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "results").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(folder / "results"), *(str(folder / f"{name}.py") for name in files)],
        capture_output=True, text=True, check=False, timeout=limit_s(), cwd=ROOT, env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    return Ran(done.stdout, done.stdout.splitlines()[-1] if done.stdout else done.stderr, done.returncode)


def test_a_failure_is_shown_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    fails = "def test_one(): pass\ndef test_two(): print('it said'); assert 1 == 2\n"
    output, last, code = ran(tmp_path, test_fails=fails)
    assert (last, code) == ("1 passed, 1 failed, 0 skipped", 1)
    assert "assert 1 == 2" in output and "it said" in output
    assert "again: bash scripts/test '" in output and "test_fails.py::test_two'" in output


def test_a_skip_is_counted_with_its_reason(tmp_path: Path) -> None:
    skips = "import pytest\ndef test_one(): pytest.skip('no such machine')\n"
    output, last, code = ran(tmp_path, test_skips=skips)
    assert (last, code) == ("0 passed, 0 failed, 1 skipped", 0)
    assert "1  no such machine" in output


def test_a_test_over_its_limit_fails_alone_and_its_children_end(tmp_path: Path) -> None:
    hangs = (
        "import subprocess, threading\n"
        "def test_hangs(): subprocess.run(['sleep', '1234'])\n"  # the test that hangs
        "def test_waits(): threading.Event().wait()\n"
        "def test_after(): pass\n"
    )
    output, last, code = ran(tmp_path, test_hangs=hangs)
    assert (last, code) == ("1 passed, 2 failed, 0 skipped", 1)
    assert "Timeout (>2.0s)" in output and "left running" not in output


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os._exit(1)"])
def test_a_lost_process_is_named_and_what_it_did_not_run_is_no_pass(end: str, tmp_path: Path) -> None:
    dies = f"import os\ndef test_first(): pass\ndef test_dies(): {end}\ndef test_never(): pass\n"
    output, last, code = ran(tmp_path, test_dies=dies, test_other="def test_other(): pass\n")
    assert (last, code) == ("2 passed, 2 failed, 0 skipped", 1)
    assert "FAILED" in output and "test_dies.py::test_dies" in output and "2 tests did not run" in output


def test_a_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    output, last, code = ran(tmp_path, test_broken="import no_such_module\n")
    assert (last, code) == ("0 passed, 1 failed, 0 skipped", 1)
    assert "No module named 'no_such_module'" in output


def test_what_a_test_leaves_running_is_ended_named_and_a_failure(tmp_path: Path) -> None:
    leaves = (
        "import subprocess\ndef test_leaves(): subprocess.Popen(['sleep', '4321'], start_new_session=True)\n"  # left
    )
    output, last, code = ran(tmp_path, test_leaves=leaves)
    assert (last, code) == ("1 passed, 1 failed, 0 skipped", 1)
    assert "test_leaves.py::test_leaves (call): process" in output and "sleep 4321" in output
    assert subprocess.run(["pgrep", "-f", "sleep 4321"], check=False, timeout=limit_s()).returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_tests_and_says_what_did_not_run(number: signal.Signals, tmp_path: Path) -> None:
    begun, results = tmp_path / "begun", tmp_path / "results"
    results.mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    waits = tmp_path / "test_waits.py"
    waits.write_text(
        "import pathlib, subprocess\ndef test_waits():\n    left = subprocess.Popen(['sleep', '2345'])\n"
        f"    pathlib.Path({str(begun)!r}).touch()\n    left.wait()\ndef test_never(): pass\n"
    )
    argv = [sys.executable, "-c", STARTS.replace("timeout=2", "timeout=600"), str(results), str(waits)]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."}
    ) as run:
        wait_until(begun.exists, "the test")
        run.send_signal(number)
        output, _ = run.communicate(timeout=limit_s())
    assert run.returncode == 130
    assert "interrupted" in output and output.splitlines()[-1] == "0 passed, 2 failed, 0 skipped"
