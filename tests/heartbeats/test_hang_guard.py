"""What the guard takes from the nodes' files: who is silent, and what a suspension makes of old evidence."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness.common.run_folder.heartbeats import Evidence
from harness.common.run_folder.run_files import EVIDENCE, HEARTBEATS
from harness.heartbeats.hang import read_hang
from harness.heartbeats.node import Guard
from harness.heartbeats.silent_nodes import seen
from harness.heartbeats.stuck import judge
from tests.heartbeats.evidences import NOW_NS, S, rank, waiting
from tests.waiting import limit_s, wait_until


def written(run: Path, node: str, ranks: list[int], last_s: float, *more: dict[str, Any]) -> None:
    """A node whose last line is `last_s` seconds old."""
    begun = [{"event": "rank", "rank": each, "world": 4, "unix_ns": NOW_NS - 99 * S} for each in ranks]
    beat = {"event": "beat", "unix_ns": NOW_NS - round(last_s * S), "ranks": []}
    lines = [{"event": "node", "host": f"host-{node}", "unix_ns": NOW_NS - 99 * S}, *begun, beat, *more]
    HEARTBEATS.folder(run).mkdir(exist_ok=True)
    HEARTBEATS.path(run, node).write_text("".join(json.dumps(line) + "\n" for line in lines))


def seen_there(run: Path, node: str, ranks: list[Evidence], ago_s: float = 1) -> None:
    """What the node saw of its ranks."""
    content = {"unix_ns": NOW_NS - round(ago_s * S), "host": node, "ranks": [each._asdict() for each in ranks]}
    EVIDENCE.path(run, node).write_text(json.dumps(content))


def test_a_node_that_fell_silent_is_named_with_its_ranks_and_since_when(tmp_path: Path) -> None:
    written(tmp_path, "a", [0, 1], 1)
    seen_there(tmp_path, "a", [waiting(0), waiting(1)])
    written(tmp_path, "b", [2, 3], 19)
    assert judge(seen(tmp_path, NOW_NS)) is None, "it may report yet"
    written(tmp_path, "b", [2, 3], 21)
    found = judge(seen(tmp_path, NOW_NS))
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == ("node gone", (2, 3), (0, 1))
    assert "ranks 0 and 1 wait in" in found.sentence
    assert "; node host-b with ranks 2 and 3 has not reported since " in found.sentence
    written(tmp_path, "b", [2, 3], 21, {"event": "end", "unix_ns": NOW_NS - 21 * S})
    assert judge(seen(tmp_path, NOW_NS)) is None, "it said that it ended"


def test_what_the_end_of_a_stopped_job_looks_like_does_not_change_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.heartbeats.node.LOOK_S", 0.05)
    monkeypatch.setattr("time.time_ns", lambda: NOW_NS)
    written(tmp_path, "a", [0, 1], 1)
    seen_there(tmp_path, "a", [rank(0, waits_in="sleeping"), waiting(1)])
    with Guard(tmp_path, stop=True) as guard:
        assert guard.over.wait(limit_s())
        written(tmp_path, "a", [0, 1], 1, {"event": "gone", "rank": 0, "ended": True, "unix_ns": NOW_NS})
        time.sleep(0.3)  # in which it would look several times
    hang = read_hang(tmp_path)
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.stops) == ("sleeps", (0,), True)
    assert "rank 0 is sleeping in data.py:41" in capsys.readouterr().err


CHILD = {"pid": 77, "program": "eval", "state": "S", "computes": False, "waits_in": ""}
WORKS: dict[str, dict[str, Any]] = {
    "it computes": {"computes": True, "quiet_ns": 0},
    "it reads": {"quiet_ns": 0},
    "its child runs": {"waits_in": "waiting for a child", "children": [{**CHILD, "state": "R"}]},
}


@pytest.mark.parametrize("works", WORKS.values(), ids=WORKS)
def test_a_job_whose_rank_works_is_told_and_ended_only_when_it_does_not_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: dict[str, Any]
) -> None:
    """As a rank that evaluates alone after an epoch, while the others wait in a barrier."""
    monkeypatch.setattr("harness.heartbeats.node.LOOK_S", 0.05)
    monkeypatch.setattr("time.time_ns", lambda: NOW_NS)
    written(tmp_path, "a", [0, 1], 1)
    seen_there(tmp_path, "a", [each._replace(since_ns=NOW_NS - 70 * S) for each in (rank(0, **works), waiting(1))])
    with Guard(tmp_path, stop=True) as guard:
        wait_until(lambda: read_hang(tmp_path), "what is told")
        assert not guard.over.wait(0.3)
        assert "the job continues: --on-hang stop does not end it while rank 0 may work" in capsys.readouterr().err
        seen_there(tmp_path, "a", [rank(0, waits_in="sleeping"), waiting(1)])
        assert guard.over.wait(limit_s())


def test_what_was_seen_before_a_suspension_says_nothing_of_now(tmp_path: Path) -> None:
    """The job was suspended for minutes, while one rank computed for longer than usual. Nodes then have time to report
    again."""
    before = [rank(1, computes=True, quiet_ns=0), waiting(0)]
    written(tmp_path, "a", [0, 1], 0.5)
    seen_there(tmp_path, "a", [each._replace(since_ns=NOW_NS - 600 * S) for each in before], ago_s=580)
    assert [judge(seen(tmp_path, NOW_NS, since_ns)) is None for since_ns in (0, NOW_NS - 1 * S)] == [False, True]
    seen_there(tmp_path, "a", [waiting(0), waiting(1)], ago_s=0)
    written(tmp_path, "b", [2, 3], 580)
    assert judge(seen(tmp_path, NOW_NS, NOW_NS - 1 * S)) is None
    found = judge(seen(tmp_path, NOW_NS, NOW_NS - 21 * S))
    assert found is not None and found.kind == "node gone"
