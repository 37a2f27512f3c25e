"""The screen of `watch`, as lines: what is on it, and that it fits whatever is in the files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.cells import cell_len

from harness.live.screen import screen
from harness.live.view import RunView, WatchedRun
from harness.run import Run
from harness.run.state import RunState
from tests.heartbeats.written import NodeWriter, S, beat
from tests.live.watched_run import Growing, slurm_run

NOW_NS = time.time_ns()
RUNNING = RunState("running", began_ns=NOW_NS - 75 * S, deadline_ns=NOW_NS + 1800 * S)
SIZES = [(60, 24), (80, 24), (120, 40), (40, 10), (20, 5)]


@pytest.fixture(autouse=True)
def _at_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, what is on the screen is as old as it says."""
    monkeypatch.setattr("time.time_ns", lambda: NOW_NS)


def watched(run: Run) -> WatchedRun:
    """Looked at in this moment."""
    return WatchedRun(run, lambda: NOW_NS)


def lines(view: RunView, width: int = 100, height: int = 40) -> list[str]:
    found = screen(view, width, height, colour=False)
    assert max(map(cell_len, found)) <= width
    assert len(found) <= height
    return found


def node_of(run: Run, ranks: range, ago_s: int = 6, host: str = "") -> NodeWriter:
    """A node of the run, which began to write so long ago."""
    node = NodeWriter(run.path, f"n{ranks.start}", ranks, host=host)
    node.now_ns = NOW_NS - ago_s * S
    return node


@pytest.fixture
def trained(tmp_path: Path) -> WatchedRun:
    run = slurm_run(tmp_path)
    Growing(run).grow(29)
    return watched(run)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_screen_fits(trained: WatchedRun, width: int, height: int) -> None:
    found = lines(trained.look(RUNNING), width, height)
    if height >= 10:
        assert any("step 116 of 5,000" in line for line in found)
    if width >= 60:
        ranks = [line.split()[0] for line in found if "train.py:42" in line or "data.py:7" in line]
        assert ranks[0] == "5", "the slowest is first"
        assert len(ranks) == 8 or height <= 24, "findings need lines, too"


def test_header_progress_findings_and_ranks(trained: WatchedRun) -> None:
    text = "\n".join(lines(trained.look(RUNNING), 120))
    for fact in (
        "tiny-llama-4711-n2-g4-bf16  running", "4711 · ada · 2 nodes · 8 ranks · runs for", "to the time limit",
        "2.3 %", "▄▄▄▄", "64 samples/s", "8.19 ktokens/s", "The time limit ends the run before its last step",
        "gpu-01", "data.py:7 __getitem__", "39.9 GB", "71 %",
    ):  # fmt: skip
        assert fact in text, fact


def test_more_ranks_than_lines(tmp_path: Path) -> None:
    run = slurm_run(tmp_path)
    for number in range(5):
        node_of(run, range(40 * number, 40 * number + 40)).run(3)
    found = lines(watched(run).look(RUNNING), 80, 24)
    assert len(found) == 24
    shown = sum("train.py" in line for line in found)
    assert found[-1] == f"and {200 - shown} more"


def test_gone_and_quiet_ranks_come_first(tmp_path: Path) -> None:
    run = slurm_run(tmp_path)
    node = node_of(run, range(4), 10)
    node.run(3)
    node.beats(*(beat(rank, 13, quiet_ms=12_000 * (rank == 2)) for rank in range(4)))
    node.line(event="gone", rank=3, unix_ns=node.now_ns, ended=False, oom=None)
    found = [line for line in lines(watched(run).look(RUNNING)) if "train.py" in line and "next" not in line]
    table = [line.split() for line in found if line.split()[0].isdigit()]
    assert [row[0] for row in table[:2]] == ["3", "2"]
    assert "gone" in table[0]
    assert table[1][-2:] == ["12", "s"]


def test_a_run_that_waits_says_why_and_until_when(tmp_path: Path) -> None:
    told = RunState("queued", "Priority", starts_ns=time.time_ns() + 2 * 3600 * S)
    text = "\n".join(lines(watched(slurm_run(tmp_path)).look(told)))
    assert [word in text for word in ("queued", "Priority", "in 2 h", "heartbeats")] == [True, True, True, False]


def test_a_run_without_heartbeats_says_so(tmp_path: Path) -> None:
    assert "has no heartbeats" in " ".join(lines(watched(slurm_run(tmp_path)).look(RUNNING), 80))


def test_what_files_say_steers_no_terminal(tmp_path: Path) -> None:
    run = slurm_run(tmp_path)
    node = node_of(run, range(1), host="\x1b]0;title\x07host\n\u202e" + "字" * 60)
    node.line(event="place", id=1, file="/a\x1b[2J\t[b]x.py", line=3, function="f\r\ng" * 500)
    node.run(3, quiet_ms=20_000)
    for width in (60, 80, 120):
        text = "\n".join(lines(watched(run).look(RUNNING), width, 24))
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "[2J [b]x.py:3 f" in text
