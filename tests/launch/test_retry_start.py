"""An nsys that ends before it has started the training is started again. Each nsys here is a stand-in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.launch.profilers.nsys import RETRY_START

# Fails the first times as nsys 2022.4 does, then starts the program; where it is told so, its report then fails.
NSYS = """#!/bin/bash
echo x >>"$0.starts"
if (($(wc -l <"$0.starts") <= $(cat "$0.failures"))); then
  echo "End of file" >&2
  exit "$(cat "$0.status")"
fi
shift 2 # profile --output
[[ -e $0.lost ]] || exec "$@"
"$@"
exit 3
"""


@pytest.fixture
def nsys(tmp_path: Path) -> Path:
    path = tmp_path / "nsys"
    path.write_text(NSYS)
    path.chmod(0o755)
    (tmp_path / "nsys.failures").write_text("0")
    (tmp_path / "nsys.status").write_text("1")
    return path


def argv(nsys: Path, *program: str) -> list[str]:
    words = [str(nsys), "profile", f"--output={nsys.parent}/profile_node0"]
    return [sys.executable, "-I", RETRY_START, str(len(words)), *words, *program]


def starts(nsys: Path) -> int:
    return len(nsys.with_name("nsys.starts").read_text().splitlines())


STOPPED = """#!/bin/bash
trap "sleep 0.5; exit 5" TERM INT USR1
echo x >>"$0.starts"
while :; do sleep 0.1; done
"""
SEVEN = ("sh", "-c", "echo it ran; exit 7")


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize(("failures", "code", "ran"), [(0, 7, 1), (1, 7, 1), (2, 7, 1), (3, 1, 0)])
def test_with_a_fake_nsys_the_training_runs_once_or_not_at_all(
    nsys: Path, failures: int, code: int, ran: int, status: int
) -> None:
    nsys.with_name("nsys.failures").write_text(str(failures))
    nsys.with_name("nsys.status").write_text(str(status))
    done = subprocess.run(argv(nsys, *SEVEN), capture_output=True, text=True, check=False)
    assert done.returncode == code, "that of the training, or of nsys"
    assert done.stdout.count("it ran") == ran
    assert starts(nsys) == min(failures + 1, 3)
    said = f"nsys ended with status {status} before it had started the training; "
    assert done.stderr.count(f"{said}it is started again\n") == min(failures, 2)
    assert done.stderr.count(f"{said}3 times: --profiler torch records without it\n") == (failures == 3)
    assert [path.name for path in nsys.parent.glob(".*")] == [], "no mark is left"


def test_with_a_fake_nsys_that_fails_after_the_training_nothing_is_repeated(nsys: Path) -> None:
    nsys.with_name("nsys.lost").touch()
    done = subprocess.run(argv(nsys, *SEVEN), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr, starts(nsys)) == (3, "it ran\n", "", 1)


def test_with_a_fake_nsys_where_no_mark_can_be_made_it_is_started_once(nsys: Path) -> None:
    nsys.with_name("nsys.failures").write_text("1")
    words = [word.replace(f"{nsys.parent}/profile", "/proc/no/profile") for word in argv(nsys, *SEVEN)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, starts(nsys)) == (1, "End of file\n", 1)


def test_what_cannot_be_started_is_one_sentence(nsys: Path) -> None:
    nsys.unlink()
    done = subprocess.run(argv(nsys, "true"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"{nsys}: cannot be started (No such file or directory)\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_asked_to_stop_it_waits_for_nsys_and_starts_none_again(nsys: Path, number: int) -> None:
    nsys.write_text(STOPPED)
    process = subprocess.Popen(argv(nsys, "true"), start_new_session=True)
    while not nsys.with_name("nsys.starts").exists():
        time.sleep(0.05)
    os.killpg(process.pid, number)
    assert process.wait(timeout=30) == 5
    assert starts(nsys) == 1
