"""The test command's runner (scripts/run_tests.py) and what tests share: nothing makes it wait for ever, nothing that
did not run is counted as passed, nothing stays behind, and a recording that nsys loses is made again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.leftovers import OF_PART, SESSION
from tests.real_nsys import LostRecordingError, checked, kept, recorded
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


HANGS = (
    "import subprocess, threading\n"
    "def test_hangs(): subprocess.run(['sleep', '1234'])\n"  # the test that hangs
    "def test_waits(): threading.Event().wait()\n"
    "def test_after(): pass\n"
)
DIES = "import os\ndef test_first(): pass\ndef test_dies(): {}\ndef test_never(): pass\n"
OTHER = "def test_other(): pass\n"
LEFT = "import subprocess\ndef test_leaves(): subprocess.Popen(['sleep', '4321'], start_new_session=True)\n"
LOST = ("FAILED", "test_a.py::test_dies", "2 tests did not run")
# What a file of tests does, what the last line says, and what stands above it.
RUNS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "a failure has the command that repeats it": (
        ("def test_one(): pass\ndef test_two(): print('it said'); assert 1 == 2\n",), "1 passed, 1 failed, 0 skipped",
        ("assert 1 == 2", "it said", "again: bash scripts/test '", "test_a.py::test_two'"),
    ),
    "a skip has its reason": (
        ("import pytest\ndef test_one(): pytest.skip('no such machine')\n",), "0 passed, 0 failed, 1 skipped",
        ("1  no such machine",),
    ),
    "a test over its limit fails alone": ((HANGS,), "1 passed, 2 failed, 0 skipped", ("Timeout (>2.0s)",)),
    "what a lost process did not run is no pass, 0": (
        (DIES.format("os._exit(0)"), OTHER), "2 passed, 2 failed, 0 skipped", LOST
    ),
    "what a lost process did not run is no pass, 1": (
        (DIES.format("os._exit(1)"), OTHER), "2 passed, 2 failed, 0 skipped", LOST
    ),
    "what a killed process did not run is no pass": (
        (DIES.format("os.kill(os.getpid(), 9)"), OTHER), "2 passed, 2 failed, 0 skipped", LOST
    ),
    "a file that cannot be read fails": (
        ("import no_such_module\n",), "0 passed, 1 failed, 0 skipped", ("No module named 'no_such_module'",)
    ),
    "what a test leaves running is ended and named": (
        (LEFT,), "1 passed, 1 failed, 0 skipped", ("test_a.py::test_leaves (call): process", "sleep 4321")
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RUNS)
def test_nothing_that_did_not_run_or_pass_is_counted_as_passed(what: str, tmp_path: Path) -> None:
    texts, expected, said = RUNS[what]
    output, last, code = ran(tmp_path, **dict(zip(("test_a", "test_b"), texts, strict=False)))
    assert (last, code) == (expected, int(" 0 failed" not in expected))
    assert [text for text in said if text not in output] == []
    assert texts != (HANGS,) or "left running" not in output, "its children have ended"
    if texts == (LEFT,):
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


# ---- What a session of the tests has started is gone after it, also when it was killed


# As pytest: it begins a session, leaves a program that has a folder of its own, and a fork that has its pipes.
LEAVES = """
import multiprocessing, subprocess, sys, time
from pathlib import Path
from tests import leftovers
leftovers.begin(grace_s=0)
folder = Path(sys.argv[1])
folder.mkdir()
leftovers.remove_at_the_end(folder)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, stderr=subprocess.DEVNULL)
fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
fork.start()
left = subprocess.Popen(["sleep", "3600"], start_new_session=True)
print(left.pid, fork.pid, flush=True)
left.wait()
"""


def test_a_killed_session_leaves_no_process_no_mount_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    env = {name: value for name, value in os.environ.items() if name not in (SESSION, OF_PART)}
    session = subprocess.Popen(
        [sys.executable, "-c", LEAVES, str(folder)], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    )
    assert session.stdout is not None
    left, fork = (Path("/proc", pid) for pid in session.stdout.readline().split())
    assert left.is_dir() and fork.is_dir() and folder.is_dir()
    session.kill()
    session.wait(timeout=limit_s())
    wait_until(
        lambda: not (left / "exe").exists(), "the end of the program"
    )  # where process 1 reaps late it is a zombie
    wait_until(lambda: not folder.exists(), "the end of the folder")
    os.kill(int(fork.name), signal.SIGKILL)  # /proc shows the environment that its parent began with, so it has no mark


# ---- A recording that nsys loses is made again, whatever way it is lost; any other failure is one at once


AGENT_LOST = "Connection to the Agent lost."
NSYS = """#!/bin/sh
echo x >> "$(dirname "$0")/starts"
case $(wc -l < "$(dirname "$0")/starts") in
1) echo 'Failed to connect to Agent'; exit 1;;
2) echo 'Connection to the Agent lost.';;
3) : > {report};;
*) echo ranges > {report};;
esac
"""


def test_a_recording_without_a_report_or_without_its_ranges_is_made_again(tmp_path: Path) -> None:
    report = tmp_path / "report.nsys-rep"
    nsys = tmp_path / "nsys"
    nsys.write_text(NSYS.format(report=report))
    nsys.chmod(0o755)
    with pytest.warns(UserWarning, match="nsys lost recording") as warned:
        done = recorded([nsys, "profile"], report, Path.read_text)
    assert (done.returncode, report.read_text(), len(warned)) == (0, "ranges\n", 3)


def test_a_launch_that_failed_for_the_agent_is_made_again_and_no_other() -> None:
    said = iter([AGENT_LOST, AGENT_LOST, ""])
    with pytest.warns(UserWarning, match="nsys lost recording") as warned:
        kept(lambda: checked(len(text := next(said)), text), lambda _: True)
    assert len(warned) == 2
    with pytest.raises(AssertionError, match="no space left"):
        kept(lambda: checked(1, "no space left"), bool)
    with pytest.raises(LostRecordingError), pytest.warns(UserWarning, match="nsys lost recording"):
        kept(lambda: checked(1, AGENT_LOST), bool)
