"""The output of a run is shown as it comes, without the marks that PyTorch's profiler writes for tracing tools."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from harness.cli.tail import Tail

MARK = "USDT:2026-11-21 22:33:49 8885:8885 SyncActivityProfilerHandler.cpp:52] profiler_start"
OTHER = "USDT:2026-11-21 22:33:50 8886:8886 SyncActivityProfilerHandler.cpp:59] profiler_stop"
BAR = "  0%|          | 0/36 [00:00<?, ?it/s]"


def shown(log: Path, *pieces: str) -> str:
    """What is shown of a log that grows by these pieces: it is read after each piece and at the end of the run."""
    return shown_bytes(log, *(piece.encode() for piece in pieces))


def shown_bytes(log: Path, *pieces: bytes) -> str:
    """As `shown`, for pieces that may end inside a character."""
    out = io.StringIO()
    tail = Tail(log, out)
    for piece in pieces:
        with log.open("ab") as file:
            file.write(piece)
        tail.pump()
    tail.pump(last=True)
    return out.getvalue()


@pytest.mark.parametrize(
    "pieces",
    [
        (f"{BAR}{MARK}\n{OTHER}\nthe end\n",),
        (BAR, f"{MARK}{OTHER}\n", "\nthe end\n"),  # two ranks at once: both marks, then both line ends
        (BAR + MARK[:40], MARK[40:], f"\n{OTHER}", "\nthe end\n"),
    ],
)
def test_the_profilers_marks_are_not_shown_and_all_else_is(tmp_path: Path, pieces: tuple[str, ...]) -> None:
    log = tmp_path / "log.err"
    assert shown(log, *pieces) == f"{BAR}the end\n"
    assert MARK in log.read_text()  # the log itself keeps them


@pytest.mark.parametrize(
    "text",
    [
        "USDT:2026 is the price\n",
        f"{MARK.replace('profiler_start', 'failed to start')}\n",
        "ERROR:2026-11-21 22:33:49 1:1 Handler.cpp:52] profiler_start\n",
        "USDT:a line that the run was killed in",
        "\n\none\n\n",
    ],
)
def test_nothing_else_is_lost(tmp_path: Path, text: str) -> None:
    assert shown(tmp_path / "log.err", "before\n", text) == f"before\n{text}"


def test_line_ends_that_are_not_the_marks_own_stay(tmp_path: Path) -> None:
    assert shown(tmp_path / "log.err", f"{MARK}\n\n\nafter\n") == "\n\nafter\n"


def test_a_character_that_a_look_cuts_in_two_is_shown_whole(tmp_path: Path) -> None:
    line = "loss 😀\n".encode()
    for cut in range(6, 9):
        assert shown_bytes(tmp_path / f"{cut}.out", line[:cut], line[cut:]) == "loss 😀\n"
    assert shown_bytes(tmp_path / "killed.out", line[:7]) == "loss \ufffd"
