"""The output of a run is shown as it comes, without the marks that PyTorch's profiler writes for tracing tools."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from harness.cli.watch.follow import Tail
from tests.launch.launch_shared import Harness, a_run

MARK = "USDT:2026-11-21 22:33:49 8885:8885 SyncActivityProfilerHandler.cpp:52] profiler_start"
OTHER = "USDT:2026-11-21 22:33:50 8886:8886 SyncActivityProfilerHandler.cpp:59] profiler_stop"
BAR = "  0%|          | 0/36 [00:00<?, ?it/s]"


def shown(log: Path, *pieces: str | bytes) -> str:
    """What is shown of a log that grows by these pieces: it is read after each piece and at the end of the run."""
    out = io.StringIO()
    tail = Tail(log, out)
    for piece in pieces:
        with log.open("ab") as file:
            file.write(piece if isinstance(piece, bytes) else piece.encode())
        tail.pump()
    tail.pump(last=True)
    return out.getvalue()


LINE = "loss 😀\n".encode()
WHOLE = (
    "USDT:2026 is the price\n",
    f"{MARK.replace('profiler_start', 'failed to start')}\n",
    "ERROR:2026-11-21 22:33:49 1:1 Handler.cpp:52] profiler_start\n",
    "USDT:a line that the run was killed in",
    "\n\none\n\n",
)


@pytest.mark.parametrize(
    ("pieces", "seen"),
    [
        ([f"{BAR}{MARK}\n{OTHER}\nthe end\n"], f"{BAR}the end\n"),
        ([BAR, f"{MARK}{OTHER}\n", "\nthe end\n"], f"{BAR}the end\n"),  # of two ranks at once
        ([BAR + MARK[:40], MARK[40:], f"\n{OTHER}", "\nthe end\n"], f"{BAR}the end\n"),
        *((["before\n", text], f"before\n{text}") for text in WHOLE),
        *(([LINE[:cut], LINE[cut:]], "loss 😀\n") for cut in range(6, 9)),
        ([LINE[:7]], "loss \ufffd"),  # it was killed there
    ],
)
def test_the_profilers_marks_are_not_shown_and_all_else_is_also_a_character_that_a_look_cuts_in_two(
    tmp_path: Path, pieces: list[str | bytes], seen: str
) -> None:
    assert shown(tmp_path / "log.err", *pieces) == seen


def test_of_a_huge_log_the_end_is_shown_and_how_to_see_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.cli.watch.follow.MOST_BYTES", 2 << 20)
    log = tmp_path / "a log.out"
    with log.open("wb") as file:
        file.truncate(10 << 30)  # sparse
        file.seek(-(1 << 20), 2)
        file.write(b"\n" + b"a line\n" * 100_000)
        file.truncate()
        file.seek(10 << 30)
        file.write(b"\nthe last line\n")
    out = io.StringIO()
    tail = Tail(log, out)
    tail.pump()
    assert out.getvalue().endswith("\nthe last line\n")
    assert len(out.getvalue()) <= 2 << 20
    said = capsys.readouterr().err
    assert said.startswith(f"{log} has 10.7 GB: the first 10.7 GB are not shown; to see all: less '{log}'")
    with log.open("ab") as file:
        file.write(b"new\n")
    tail.pump(last=True)
    assert out.getvalue().endswith("\nthe last line\nnew\n")
    assert capsys.readouterr().err == ""


def test_the_end_of_a_long_log_begins_with_a_whole_line_and_all_that_is_new_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.watch.follow.MOST_BYTES", 25)
    lines = [f"line {number}\n" for number in range(100, 200)]
    assert shown(tmp_path / "log.out", "".join(lines), "".join(lines)) == "".join([*lines[-2:], *lines])


@pytest.mark.parametrize("kind", ["a pipe", "a folder"])
def test_what_is_no_log_is_said_and_nothing_waits_for_it(harness: Harness, tmp_path: Path, kind: str) -> None:
    run = a_run(tmp_path / "runs", "local-1")
    if kind == "a pipe":
        os.mkfifo(run.out)
    else:
        run.out.mkdir()
    run.err.write_text("what it warned of\n")
    done = harness("logs", "local-1")
    assert done.returncode == 1
    assert done.stderr == f"what it warned of\nslurm.sh: {run.out}: is {kind}, not a file\n"
