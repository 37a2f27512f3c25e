"""`slurm.sh watch` as a user runs it: lines, JSON, a real pseudo-terminal; and how often Slurm is asked."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.cli.main import main
from harness.cli.watch.status import WatchedState
from harness.run import Run
from harness.run.record import Status
from tests.heartbeats.written import S
from tests.launch.launch_shared import ROOT, a_run
from tests.live.watched_run import Growing, row, slurm_run, stand_in
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("harness.site.slurm_commands._silent", {})
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def run(root: Path) -> Run:
    """A run that Slurm lists as running, with heartbeats."""
    made = slurm_run(root, began_ns=time.time_ns() - 75 * S)
    stand_in(root, row())
    Growing(made).grow(29)
    return made


def end(run: Run, state: str = "completed") -> None:
    run.write_status(Status(state=state, told_by="COMPLETED", started_ns=1, ended_ns=2))  # type: ignore[arg-type]


def questions(root: Path) -> int:
    log = root / "bin" / "squeue.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_once_prints_the_screen(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--once"]) == 0
    out = capsys.readouterr().out
    assert "tiny-llama-4711-n2-g4-bf16  running" in out
    assert "step 116 of 5,000" in out
    assert "\x1b" not in out


def test_json_has_everything(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "4711", "--json", "--once"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["job_id"], found["state"], found["progress"]["step"]) == ("4711", "running", 116)
    assert found["deadline_unix_ns"] > time.time_ns()
    assert len(found["ranks"]) == 8
    assert found["ranks"][0]["rank"] == 5
    assert [node["host"] for node in found["nodes"]] == ["gpu-00", "gpu-01"]
    assert [finding["kind"] for finding in found["findings"]] == ["limit", "slowest"]


def test_lines_go_on_until_the_run_has_ended(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now_s[0] += seconds
        if len(pauses) == 2:
            end(run)

    monkeypatch.setattr("harness.live.watching.time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    assert main(["watch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "4711  running  step 116 of 5,000" in lines[0]
    assert "4711  completed" in lines[2]
    assert pauses == [30, 30]


def test_a_run_that_failed_is_exit_code_1(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    end(run, "failed")
    assert main(["watch", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["state"] == "failed"
    assert main(["watch", "last", "--interval", "3000"]) == 1
    assert "step 116 of 5,000" in capsys.readouterr().out, "its last screen, and no line every 30 s"


def test_without_a_run_the_newest_unfinished_one_else_the_newest(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, last = slurm_run(root, "4711"), slurm_run(root, "4712")
    stand_in(root, row("4711"))
    end(last)
    main(["watch", "--once"])
    assert "tiny-llama-4711" in capsys.readouterr().out
    end(first)
    main(["watch", "--once"])
    out, err = capsys.readouterr()
    assert "tiny-llama-4712" in out
    assert "no run is unfinished; this is the newest" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["4799"], "there is no run '4799'"), (["4711", "4712"], "4712"), (["--interval", "0"], "--interval")],
)
def test_wrong_requests(run: Run, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert main(["watch", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_no_question_about_a_run_that_has_ended_and_none_so_soon(root: Path) -> None:
    now_s = [0.0]
    run = slurm_run(root)
    state = WatchedState(run, clock=lambda: now_s[0])
    stand_in(root, row("4711", "PENDING", reason="Priority"))
    told = state.look()
    assert (told.state, told.why, told.deadline_ns) == ("queued", "Priority", None)
    assert told.starts_ns == pytest.approx(time.time_ns() + 1800 * S, abs=600 * S)
    state.look()
    assert questions(root) == 1, "so soon, the last answer is still valid"
    stand_in(root, row())
    now_s[0] = 10
    told = state.look()
    assert told.state == "running" and told.deadline_ns is not None and told.deadline_ns > time.time_ns()
    assert questions(root) == 2
    stand_in(root, f"{row().rsplit('|', 2)[0]}|N/A|None")
    run.write_status(Status(state="running", started_ns=7))
    now_s[0] = 20
    assert state.look().deadline_ns == 7 + run.record.site.time_s * S, "where Slurm names none"
    end(run)
    now_s[0] = 30
    assert state.look().state == "completed"
    assert questions(root) == 3


def test_a_queue_that_does_not_answer_leaves_the_last_known_state(root: Path, run: Run) -> None:
    now_s = [0.0]
    state = WatchedState(run, clock=lambda: now_s[0])
    assert state.look().state == "running"
    (root / "bin" / "squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    now_s[0] = 10
    told = state.look()
    assert (told.state, told.why) == ("running", "its queue does not answer; this is the last known state")


def test_a_local_run_is_looked_at_without_any_queue(root: Path) -> None:
    stand_in(root)
    assert WatchedState(a_run(root, "local-1")).look().state == "queued"
    assert questions(root) == 0


class OnTerminal:
    """`slurm.sh watch` on a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness", "watch", *words], cwd=ROOT, stdin=inside, stdout=inside,
            stderr=inside, env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True,
        )  # fmt: skip
        os.close(inside)
        self.said = ""

    def wait_for(self, text: str) -> None:
        def shows() -> bool:
            self._read()
            return text in self.said

        wait_until(shows, f"{text!r} on the terminal", lambda: self.said[-2000:])

    def _read(self) -> None:
        if select.select([self.terminal], [], [], 0.5)[0]:
            with suppress(OSError):  # its other end is closed
                self.said += os.read(self.terminal, 65536).decode("utf-8", "replace")

    def end(self) -> int:
        """The exit code."""

        def has_ended() -> bool:
            self._read()  # it may wait for room to write
            return self.process.poll() is not None

        wait_until(has_ended, "its end", lambda: self.said[-2000:])
        os.close(self.terminal)
        assert "Traceback" not in self.said
        return self.process.returncode


@pytest.mark.parametrize(("fails", "code"), [(True, 1), (False, 0)], ids=["until the run has failed", "until Ctrl-C"])
def test_on_a_terminal_the_screen_is_drawn_over_itself(run: Run, fails: bool, code: int) -> None:
    shown = OnTerminal("--interval", "0.5")
    shown.wait_for("step 116 of 5,000")
    if fails:
        end(run, "failed")
    else:
        shown.process.send_signal(signal.SIGINT)
    assert shown.end() == code
    drawn = shown.said.count("\x1b[H"), shown.said.count("\x1b[J")
    assert not fails or drawn[0] == drawn[1] >= 2, "Ctrl-C may come within a screen"
    below = OnTerminal("--once")
    assert below.end() == fails and "\x1b[1m" in below.said and "\ufffd" not in below.said
