"""What is done beside an nsys that records again or is stopped by the clock. The nsys is a stand-in, whose session's
state is in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.common.run_folder.captures import (
    CaptureRequest,
    answer_file,
    as_text,
    folder_of,
    given_up_file,
    request_file,
)
from harness.launch.profilers.record import Recorder, session_of
from tests.launch.stand_ins import executable

# As nsys 2022.4 answers. A report is written by who begins and ends the recording, which is the test.
NSYS = """#!/bin/bash
here=$(dirname "$0")
echo "$*" >>"$here/said"
case $1 in
  profile) sleep "$(cat "$here/lasts")"; exit 7 ;;
  start)
    if [[ $(cat "$here/state") != Launched ]]; then
      printf 'a warning\\nConfiguring is not allowed in this state.\\n' >&2
      exit 1
    fi
    echo StartRange >"$here/state" ;;
  sessions)
    printf '  ID  TIME  STATE LAUNCH NAME\\n 1 00:08 Launched 1 other\\n'
    printf ' 12 00:09 %s 1 mine\\n' "$(cat "$here/state")" ;;
esac
"""
OUTPUT = "profile_node0"


@pytest.fixture
def nsys(tmp_path: Path) -> Path:
    path = executable(tmp_path / "nsys's folder" / "nsys", NSYS)
    (path.parent / "state").write_text("StartRange")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "a run"
    (path / "nsys").mkdir(parents=True)
    (path / "captures").mkdir()
    return path


@pytest.fixture
def look(nsys: Path, run: Path) -> Callable[[], None]:
    recorder = Recorder(str(nsys), "mine", ["--stats=true"], run / "nsys" / OUTPUT)

    def at_once() -> None:
        recorder._next_try_s = 0.0
        recorder.look()

    return at_once


def ask(run: Path, number: int) -> None:
    request_file(run).write_text(as_text(CaptureRequest(number, 5, reports=1)))


def answer(run: Path, number: int) -> str:
    """ready, done, or busy."""
    for what in ("done", "ready"):
        if answer_file(run, number, OUTPUT, what).exists():
            return what
    return "busy"


def test_it_is_ready_when_the_runs_own_report_is_written(nsys: Path, run: Path, look: Callable[[], None]) -> None:
    look()
    assert not (nsys.parent / "said").exists(), "nothing is asked: nsys is left alone"
    ask(run, 1)
    look()
    assert answer(run, 1) == "busy", "the run's own recording has not ended"
    assert not (nsys.parent / "said").exists()
    (run / "nsys" / f"{OUTPUT}.nsys-rep").touch()
    look()
    assert answer(run, 1) == "busy", "nsys does not start another one in this state"
    (nsys.parent / "state").write_text("Launched")
    look()
    assert answer(run, 1) == "ready"
    wanted = folder_of(run, 1) / OUTPUT
    assert (nsys.parent / "said").read_text().splitlines()[-1] == (
        f"start --session=mine --output={wanted} --stats=true"
    )


def test_a_recording_is_done_when_nsys_is_no_longer_at_its_report(
    nsys: Path, run: Path, look: Callable[[], None]
) -> None:
    (run / "nsys" / f"{OUTPUT}.nsys-rep").touch()
    for number in (1, 2):
        (nsys.parent / "state").write_text("Launched")
        ask(run, number)
        look()
        look()
        assert answer(run, number) == "ready", "there is no report yet"
        (nsys.parent / "state").write_text("RangeImportation")
        (folder_of(run, number) / f"{OUTPUT}.nsys-rep").touch()
        look()
        assert answer(run, number) == "ready"
        (nsys.parent / "state").write_text("Launched")
        look()
        assert answer(run, number) == "done"


def test_what_was_prepared_for_a_request_that_was_taken_back_serves_the_next(
    nsys: Path, run: Path, look: Callable[[], None]
) -> None:
    (run / "nsys" / f"{OUTPUT}.nsys-rep").touch()
    (nsys.parent / "state").write_text("Launched")
    ask(run, 1)
    look()
    given_up_file(run, 1).touch()
    ask(run, 2)
    look()
    assert answer(run, 2) == "ready"
    assert (nsys.parent / "said").read_text().count("start") == 1, "nsys cannot take back what is prepared"
    for suffix in (".nsys-rep", ".sqlite"):
        (folder_of(run, 1) / f"{OUTPUT}{suffix}").touch()
    (nsys.parent / "state").write_text("Launched")
    look()
    assert answer(run, 2) == "done"
    assert sorted(p.name for p in folder_of(run, 2).iterdir()) == [f"{OUTPUT}.nsys-rep", f"{OUTPUT}.sqlite"]


def test_by_the_clock_a_stop_ends_the_recording_and_nsys_stays_with_the_training() -> None:
    words = ["nsys", "profile", "--delay=200", "--duration=30", "--output=x"]
    found = session_of(words, "mine", ["--stats=true"])
    assert found.words == ["nsys", "profile", "--session-new=mine", "--delay=200", "--output=x", "--kill=none"]
    begin, end = map(int, found.variables["HARNESS_RECORDED_NS"].split())
    assert (end - begin, found.beside is None) == (30 * 10**9, False)
    to_the_end = session_of([word for word in words if "duration" not in word], "mine")
    assert (to_the_end.words, to_the_end.beside) == (["nsys", "profile", "--delay=200", "--output=x"], None)
    assert to_the_end.variables["HARNESS_RECORDED_NS"].endswith(" 0")
    by_range = ["nsys", "profile", "--capture-range=nvtx", "--delay=200", "--duration=30", "--output=x"]
    assert session_of(by_range, "mine") == (by_range, {}, None), "whatever its delay says"
