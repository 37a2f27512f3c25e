"""The reader of heartbeats: what it knows of ranks and nodes, and that no file stops it or grows it without end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.common.run_folder.heartbeats import encode, live_folder
from harness.heartbeats.lines import ProgramLine
from harness.heartbeats.model import MOST, History, Live
from harness.heartbeats.read import Reader
from tests.heartbeats.written import START_NS, NodeWriter, S, beat


@pytest.fixture
def clock() -> SimpleNamespace:
    """The reader's clock, which a test sets."""
    return SimpleNamespace(ns=START_NS)


@pytest.fixture
def reader(tmp_path: Path, clock: SimpleNamespace) -> Reader:
    return Reader(tmp_path, now_ns=lambda: clock.ns)


@pytest.fixture
def node(tmp_path: Path) -> NodeWriter:
    """A node of one rank."""
    return NodeWriter(tmp_path, "n0", range(1))


def test_ranks_of_two_nodes_with_their_steps_places_and_rates(
    tmp_path: Path, reader: Reader, clock: SimpleNamespace
) -> None:
    assert (reader.read().there, reader.live.progress()) == (False, (None,) * 6)
    for name, ranks in (("n0", range(2)), ("n1", range(2, 4))):
        node = NodeWriter(tmp_path, name, ranks)
        assert node.run(20) == 80
        clock.ns = node.now_ns + S
    live = reader.read()
    assert sorted(live.ranks) == [0, 1, 2, 3]
    rank = live.ranks[3]
    assert (rank.node, rank.host, rank.pid) == ("n1", "host-n1", 1003)
    assert (rank.step, rank.steps, rank.phase) == (80, 1000, "forward")
    assert rank.code_line == ProgramLine("/home/ada/train.py", 42, "forward")
    assert rank.history.steps.tolist() == list(range(80))
    assert np.allclose(rank.history.us, 500_000, rtol=0.003)
    progress = live.progress()
    assert (progress.step, progress.steps) == (80, 1000)
    assert progress.step_ns == pytest.approx(5e8, rel=0.003)
    assert progress.samples_per_s == pytest.approx(64)
    assert progress.tokens_per_s == pytest.approx(8192)
    assert progress.remaining_s == pytest.approx(920 * 0.5, rel=0.003)
    assert live.nodes["n1"].age_s(live.now_ns) == pytest.approx(1)


def test_only_what_is_appended_is_read_and_a_cut_line_is_read_again(node: NodeWriter, reader: Reader) -> None:
    node.run(3)
    reader.read()
    whole = json.dumps({"event": "beat", "unix_ns": node.now_ns + 2 * S, "ranks": [beat(0, 13, [100])]}) + "\n"
    node.text(whole[:50])
    assert reader.read().ranks[0].step == 12
    node.text(whole[50:])
    assert reader.read().ranks[0].step == 13
    assert reader.read().ranks[0].history.steps.tolist() == list(range(13))


@pytest.mark.parametrize(
    "damaged",
    [
        "\n",
        "no json\n",
        "[1, 2]\n",
        "null\n",
        '{"event": "beat"}\n',
        '{"event": "later", "x": 1}\n',
        '{"event": "beat", "unix_ns": -5, "ranks": []}\n',
        '{"event": "beat", "unix_ns": 1e400, "ranks": []}\n',
        '{"event": "rank", "rank": 99999999999999999999999}\n',
        '{"event": "node", "host": "\\ud800"}\n',
        "[" * 9000 + "\n",
        "\0" * 5000 + "\n",
        json.dumps({"event": "beat", "unix_ns": 1, "ranks": [beat(0, 1 << 70)]}) + "\n",
        json.dumps({"event": "beat", "unix_ns": START_NS * 2, "ranks": [beat(0, 12)._replace(steps="0?é")]}) + "\n",
        json.dumps({"event": "beat", "unix_ns": START_NS * 2, "ranks": [beat(0, 12)._replace(steps="000")]}) + "\n",
    ],
    ids=range(15),
)
def test_damaged_lines_are_left_out(node: NodeWriter, reader: Reader, damaged: str) -> None:
    node.run(2)
    node.text(damaged)
    assert reader.read().ranks[0].history.steps.tolist() == list(range(8))
    node.run(1, first=8)
    rank = reader.read().ranks[0]
    assert (rank.step, rank.history.steps.tolist()) == (12, list(range(12)))


def test_of_a_long_file_the_beginning_and_the_end_are_read(tmp_path: Path, reader: Reader) -> None:
    node = NodeWriter(tmp_path, "n0", range(4))
    step = node.run(2000)
    assert node.path.stat().st_size > 500_000
    live = reader.read()
    assert [rank.pid for rank in live.training] == [1000, 1001, 1002, 1003]
    assert live.ranks[2].code_line == ProgramLine("/home/ada/train.py", 42, "forward")
    steps = live.ranks[2].history.steps
    assert 100 < len(steps) < 1000
    assert steps.tolist() == list(range(step - len(steps), step))
    node.run(1, first=step)
    assert reader.read().ranks[2].history.steps.tolist() == list(range(step - len(steps), step + 4))


PLACE = ProgramLine("/home/ada/train.py", 42, "forward")
GONE: dict[str, Any] = {"event": "gone", "rank": 0, "step": 9, "unix_ns": START_NS, "ended": False, "oom": "cgroup"}
BEGUN: dict[str, Any] = {"event": "rank", "rank": 0, "world": 2, "local": 0, "unix_ns": START_NS + 9 * S}
EVENTS: dict[str, tuple[list[dict[str, Any]], tuple[Any, ...]]] = {  # and the rank's pid, step, steps, place, history
    "none": ([], (1000, 8, 1000, PLACE, 8, None)),
    "it is gone": ([GONE], (1000, 9, 1000, PLACE, 8, (START_NS, False, "cgroup", 9))),
    "another begins in its place": ([GONE, {**BEGUN, "pid": 7, "steps": None}], (7, None, None, None, 0, None)),
    "it has learnt how many steps there will be": (
        [{**BEGUN, "pid": 1000, "steps": 90}],
        (1000, 8, 90, PLACE, 8, None),
    ),
    "the node's next monitor has its own numbers of places": (
        [
            {"event": "node", "node": 0, "host": "host-n0", "unix_ns": START_NS + 9 * S},
            {"event": "beat", "unix_ns": START_NS + 9 * S, "ranks": [beat(0, 9)]},
        ],
        (1000, 9, 1000, None, 8, None),
    ),
}


@pytest.mark.parametrize(("events", "known"), EVENTS.values(), ids=EVENTS)
def test_what_a_rank_is_told_to_be(
    node: NodeWriter, reader: Reader, events: list[dict[str, Any]], known: tuple[Any, ...]
) -> None:
    node.run(2)
    reader.read()
    for event in events:
        node.line(**event)
    live = reader.read()
    rank = live.ranks[0]
    assert (rank.pid, rank.step, rank.steps, rank.code_line, len(rank.history), rank.gone) == known
    assert live.training == [rank] * (rank.gone is None)


def test_a_node_that_does_not_report_any_more(tmp_path: Path, reader: Reader, clock: SimpleNamespace) -> None:
    nodes = [NodeWriter(tmp_path, name, range(n, n + 1)) for n, name in enumerate(("n0", "n1", "n2"))]
    for node in nodes:
        node.run(3)
    nodes[0].line(event="end", unix_ns=nodes[0].now_ns)
    clock.ns = nodes[0].now_ns
    assert reader.read().silent_nodes() == []
    nodes[1].run(10, first=12)
    clock.ns = nodes[1].now_ns
    assert [node.name for node in reader.read().silent_nodes()] == ["n2"]
    clock.ns += 3600 * S
    assert [node.name for node in reader.read().silent_nodes()] == ["n1", "n2"]
    nodes[1].run(1, first=52)  # a node whose clock is behind reports
    assert [node.name for node in reader.read().silent_nodes()] == ["n2"]


def test_the_history_keeps_the_newest_entries() -> None:
    history = History()
    for first in range(0, 20_000, 10):
        history.take([beat(0, first + 10, [100.0] * 10)])
        assert len(history) <= MOST
    assert len(history) == MOST
    assert history.steps.tolist() == list(range(20_000 - len(history), 20_000))
    history.take([beat(0, 50_000, [5.0] * 10_000)])
    assert (len(history), history.steps[0], history.steps[-1]) == (MOST, 50_000 - MOST, 49_999)
    history = History()  # an entry may be the mean of several steps
    history.take([beat(0, 40)._replace(first=10, per=10, steps=encode([100, 200]), own_phase=encode([50, 60]))])
    assert (history.steps.tolist(), history.own_us.round().tolist()) == ([10, 20], [50, 60])


def test_the_first_loss_that_is_not_finite_is_told_again_and_damaged_ones_are_left_out(
    node: NodeWriter, reader: Reader
) -> None:
    bad = {"event": "loss", "rank": 0, "step": 1, "loss": "nan", "weights": True}
    for each in (bad, bad, {**bad, "step": -1}, {**bad, "rank": "x"}):
        node.line(**each)
    assert {rank: line.step for rank, line in reader.read().losses.items()} == {0: 1}


def test_steps_whose_own_time_is_not_known(node: NodeWriter, reader: Reader) -> None:
    node.run(1, own_ms=[0.0, 300.0, 0.0, 300.0])
    rank = reader.read().ranks[0]
    assert np.isnan(rank.history.own_us).tolist() == [True, False, True, False]
    assert rank.recent_own_us == pytest.approx(300_000, rel=0.003)


def test_where_no_rank_makes_progress_the_remaining_time_is_not_known(tmp_path: Path, reader: Reader) -> None:
    node = NodeWriter(tmp_path, "n0", range(2))
    node.run(3)
    node.beats(beat(0, 12, idle_ms=11_000), beat(1, 12, idle_ms=500))
    live = reader.read()
    assert [rank.is_idle() for rank in live.training] == [True, False]
    assert live.progress().remaining_s is not None
    node.beats(beat(0, 12, idle_ms=13_000), beat(1, 12, idle_ms=12_000))
    assert reader.read().progress().remaining_s is None


def test_samples_are_counted_since_the_first(node: NodeWriter, reader: Reader) -> None:
    for _ in range(10):
        node.beats(beat(0, 0), samples=0, tokens=None)
    assert reader.read().progress().samples_per_s is None
    for step in range(1, 5):
        node.beats(beat(0, step), samples=64, tokens=None)
    progress = reader.read().progress()
    assert progress.samples_per_s == pytest.approx(32)
    assert progress.tokens_per_s is None


def test_what_is_no_file_stops_nothing(tmp_path: Path, reader: Reader) -> None:
    NodeWriter(tmp_path, "n0", range(1)).run(1)
    os.mkfifo(live_folder(tmp_path) / "fifo.jsonl")
    (live_folder(tmp_path) / "folder.jsonl").mkdir()
    (live_folder(tmp_path) / "nowhere.jsonl").symlink_to(tmp_path / "missing")
    assert list(reader.read().ranks) == [0]


def test_a_line_without_end_and_a_file_that_begins_anew(tmp_path: Path, node: NodeWriter, reader: Reader) -> None:
    node.run(1)
    reader.read()
    node.text("x" * 3_000_000)
    reader.read()
    node.text("\n")
    node.run(1, first=4)
    assert reader.read().ranks[0].step == 8
    node.path.unlink()
    NodeWriter(tmp_path, "n0", range(1)).run(1)
    assert reader.read().ranks[0].step == 4


def test_a_node_names_no_more_ranks_than_a_machine_can_have(node: NodeWriter, reader: Reader) -> None:
    for number in range(0, 5000, 100):
        node.beats(*(beat(rank, 1) for rank in range(number, number + 100)))
    live: Live = reader.read()
    assert len(live.ranks) == 1024
