"""The sentences about a run that runs: each appears if and only if it is so."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from harness.common.run_folder.run_files import EVIDENCE
from harness.heartbeats.model import Live
from harness.heartbeats.read import Reader
from harness.live.notes import notes
from tests.heartbeats.evidences import rank
from tests.heartbeats.written import NodeWriter, S, beat


def told(live: Live) -> dict[str, tuple[tuple[int, ...], str]]:
    return {note.kind: (note.ranks, note.sentence) for note in notes(live)}


@pytest.fixture
def node(tmp_path: Path) -> NodeWriter:
    return NodeWriter(tmp_path, "n0", range(4))


def read(node: NodeWriter, later_s: float = 1) -> Live:
    return Reader(node.path.parents[1], "4711", now_ns=lambda: node.now_ns + round(later_s * S)).read()


def test_nothing_is_said_of_a_healthy_run(node: NodeWriter) -> None:
    node.run(30)
    live = read(node)
    live.deadline_ns = live.now_ns + 3600 * S
    assert notes(live) == []


def test_before_the_first_step_it_is_told_who_works(tmp_path: Path, node: NodeWriter) -> None:
    first = {"step": 0, "usual_ns": 0, "since_ns": node.now_ns - 62 * S, "quiet_ns": 62 * S}
    ranks = [rank(0, **first), rank(1, **first | {"quiet_ns": 0, "computes": True})]
    content = {"unix_ns": node.now_ns, "host": "n0", "ranks": [each._asdict() for each in ranks]}
    EVIDENCE.path(tmp_path, "n0").write_text(json.dumps(content))
    said = "No step has ended yet: rank 0 waits 1 min 3 s for rank 1, which is computing in data.py:41."
    assert told(read(node)) == {"prepares": ((), said)}


def test_a_loss_that_is_not_finite(node: NodeWriter) -> None:
    node.line(event="loss", rank=3, step=2, loss="nan", weights=True)
    node.beats(*(beat(rank, 4, loss="nan" if rank == 3 else "1.5") for rank in range(4)))
    ranks, sentence = told(read(node))["loss"]
    assert ranks == (3,)
    assert sentence.startswith("The loss is NaN since step 2 on rank 3: the weights were finite")


def test_a_node_that_does_not_report_any_more(tmp_path: Path, node: NodeWriter) -> None:
    lost = NodeWriter(tmp_path, "n1", range(4, 6))
    lost.run(2)
    step = node.run(10)
    node.beats(*(beat(rank, step, idle_ms=12_000) for rank in node.ranks))
    (found,) = notes(read(node))
    since = datetime.fromtimestamp(lost.now_ns / S).strftime("%H:%M:%S")
    wanted = f"Node host-n1 with ranks 4 and 5 has not reported since {since}."
    assert (found.kind, found.ranks, found.sentence) == ("node", (4, 5), wanted)
    assert found.evidence == "the last line is 19 s old"
    ranks, sentence = told(read(node, later_s=60))["node"]
    assert (ranks, sentence) == ((0, 1, 2, 3, 4, 5), "No node reports any more.")


def test_nodes_of_a_job_that_is_suspended_need_not_report(node: NodeWriter) -> None:
    node.run(20)
    live = read(node, later_s=600)
    assert "node" in told(live)
    live.suspended = True
    assert notes(live) == []


def test_a_time_limit_before_the_last_step(node: NodeWriter) -> None:
    step = node.run(10)
    live = read(node)
    needed_s = (1000 - step) * 0.5
    live.deadline_ns = live.now_ns + round((needed_s - 60) * S)
    (found,) = notes(live)
    assert found.sentence.startswith("The time limit ends the run before its last step: 7 min")
    assert found.evidence.startswith("960 steps of ")
    assert found.command == "start the next run with a longer --time"
    live.deadline_ns += 120 * S
    assert notes(live) == []


def test_the_time_limit_that_is_long_enough_is_named(node: NodeWriter) -> None:
    step = node.run(10)
    live = read(node)
    assert (1000 - step) * 0.5 == 480
    live.began_ns, live.deadline_ns = live.now_ns - 420 * S, live.now_ns + 300 * S
    (found,) = notes(live)
    assert found.command == "start the next run with --time 00:16:30", "15 min, and a tenth more"
    live.deadline_ns = live.now_ns + 540 * S
    assert notes(live) == []
    live.warning_s = 300
    (found,) = notes(live)
    assert "the run is asked to end 4 min before its limit" in found.evidence, "a quarter of 16 min"
    assert "5 min are left" in found.sentence
    assert found.command.endswith("--time 00:21:30"), "with the time before its limit"


def test_without_a_number_of_steps_nothing_is_said_of_the_time_limit(tmp_path: Path) -> None:
    node = NodeWriter(tmp_path, "n1", range(2), steps=None)
    node.run(30)
    live = read(node)
    live.began_ns, live.deadline_ns = live.now_ns - 60 * S, live.now_ns + 1 * S
    assert notes(live) == []
