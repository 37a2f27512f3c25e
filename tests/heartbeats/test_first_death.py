"""Which rank failed first, from what the monitors of the nodes wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from harness.common.run_files import HEARTBEATS, MEMORY_SNAPSHOTS
from harness.heartbeats.dead import Death, first_death
from tests.heartbeats.evidences import S

PLACE = ["/home/ann/train.py", 31, "step"]
BROKEN = "[pair.cc:553] Connection closed by peer [10.0.0.1]:4"


def gone(rank: int, at: int, **known: Any) -> dict[str, Any]:
    usual = {"event": "gone", "rank": rank, "pid": 100 + rank, "step": 60, "place": PLACE, "unix_ns": at}
    return {**usual, "ended": False, "oom": None, "error": None, **known}


def error(kind: str, message: str, at: int) -> dict[str, Any]:
    return {"type": kind, "message": message, "place": PLACE, "unix_ns": at}


def first(run: Path, nodes: dict[str, list[dict[str, Any]]], log: str = "") -> Death | None:
    for name, lines in nodes.items():
        path = HEARTBEATS.path(run, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "go')
    (run / "log.err").write_text(log)
    return first_death(run, run / "log.err")


def told(run: Path, nodes: dict[str, list[dict[str, Any]]], log: str = "") -> str:
    found = first(run, nodes, log)
    return "" if found is None else found.sentence


def test_the_cause_comes_before_the_broken_connections_of_the_others(tmp_path: Path) -> None:
    nodes = {
        "a": [gone(0, 30, error=error("RuntimeError", BROKEN, 19))],
        "b": [gone(1, 25, error=error("ValueError", "no such token", 20))],
    }
    assert told(tmp_path, nodes) == "rank 1 failed first, in step 60: ValueError: no such token (train.py:31)"


def test_a_rank_that_a_signal_ended_is_first_although_others_raised_before_it_was_seen(tmp_path: Path) -> None:
    nodes = {"a": [gone(0, 21, error=error("RuntimeError", BROKEN, 19)), gone(1, 20, step=58)]}
    log = "exitcode: -9 (pid: 101)\n"
    wanted = "rank 1 failed first, in step 60: it was ended by the signal KILL (last seen at train.py:31)"
    assert told(tmp_path, nodes, log) == wanted
    nodes["a"][1]["oom"] = "cgroup"
    assert "the job used more memory than its cgroup allows" in told(tmp_path, nodes, log)


def test_who_held_the_memory_is_told_where_a_snapshot_knows_it(tmp_path: Path) -> None:
    failed = error("OutOfMemoryError", "CUDA out of memory.", 20)
    nodes = {"a": [gone(1, 25, error=failed)]}
    said = "rank 1 failed first, in step 60: OutOfMemoryError: CUDA out of memory. (train.py:31)"
    assert told(tmp_path, nodes) == said
    held = {"weights": 3 * 10**9, "activations": 12 * 10**9, "inputs": 0, "gradients": 10**9, "other": 5}
    MEMORY_SNAPSHOTS.folder(tmp_path).mkdir()
    MEMORY_SNAPSHOTS.path(tmp_path, 1).write_text(json.dumps({"failure": {"bytes": held}}))
    then = "; tensors held 16.0 GB then: activations 12.0 GB, weights 3.00 GB, gradients 1.00 GB"
    assert told(tmp_path, nodes) == said + then
    nodes["a"][0]["error"] = error("ValueError", "no such token", 20)
    assert "tensors held" not in told(tmp_path, nodes), "it survived that"


def test_a_crash_in_c_has_its_line(tmp_path: Path) -> None:
    nodes = {"a": [gone(1, 20, error=error("Segmentation fault", "", 20), step=58), gone(0, 21)]}
    wanted = "rank 1 failed first, in step 60: Segmentation fault (train.py:31)"
    assert told(tmp_path, nodes, "exitcode: -11 (pid: 101) exitcode: -15 (pid: 100)") == wanted


def test_ranks_that_abort_in_different_collectives_are_told_with_both(tmp_path: Path) -> None:
    """gloo aborts where the bytes that arrive do not fit: only the stacks tell which collectives they were of."""
    eval_place = ["/home/ann/eval.py", 7, "check"]
    aborted = {**error("Aborted", "", 20), "call": "all_reduce"}
    lost = {**error("RuntimeError", BROKEN, 22), "call": "broadcast", "place": eval_place}
    said = told(tmp_path, {"a": [gone(1, 20, error=aborted), gone(0, 23, error=lost)]}, "exitcode: -6 (pid: 101)")
    assert said == (
        "rank 1 failed first, in step 60: Aborted (train.py:31); rank 0 was in broadcast (eval.py:7); rank 1 was in "
        "all_reduce (train.py:31): all ranks of a group must make the same collectives in the same order"
    )
    same = {**lost, "call": "all_reduce", "place": PLACE}
    assert "was in" not in told(tmp_path, {"a": [gone(1, 20, error=aborted), gone(0, 23, error=same)]})
    victims = [gone(0, 23, error=lost), gone(2, 22, error={**error("RuntimeError", BROKEN, 21), "call": "all_reduce"})]
    assert "was in" not in told(tmp_path, {"a": [gone(1, 20), *victims]}, "exitcode: -9 (pid: 101)"), "it was killed"
    raised = gone(1, 20, error={**error("ValueError", "no such token", 20), "call": ""})
    assert "was in" not in told(tmp_path, {"a": [raised, *victims]})


def test_who_left_early_is_named_only_if_nobody_failed_by_itself(tmp_path: Path) -> None:
    broken = gone(0, 30, error=error("RuntimeError", BROKEN, 29))
    left = gone(1, 20, ended=True)
    wanted = "rank 1 left the training in step 60 (last seen at train.py:31), and the others could not go on without it"
    assert told(tmp_path, {"a": [broken, left]}) == wanted
    failed = gone(2, 25, error=error("KeyError", "'x'", 25))
    assert told(tmp_path, {"a": [broken, left, failed]}).startswith("rank 2 failed first, in step 60: KeyError")
    exits = gone(1, 20, error=error("os._exit", "0", 20))
    assert "rank 1 left the training in step 60 by os._exit(0) (train.py:31)" in told(tmp_path, {"a": [broken, exits]})


def test_ranks_that_were_asked_to_end_are_not_first(tmp_path: Path) -> None:
    nodes = {"a": [gone(0, 10), gone(1, 20, error=error("ValueError", "x", 20))]}
    assert told(tmp_path, nodes, "exitcode: -15 (pid: 100)").startswith("rank 1")


def test_a_node_that_fell_silent_is_first_if_all_others_only_lost_their_connections(tmp_path: Path) -> None:
    at = time.time_ns()
    begun = {"event": "rank", "rank": 1, "world": 2, "unix_ns": at - 60 * S}
    lost = [{"event": "node", "host": "node2", "unix_ns": at - 60 * S}, begun]
    lost.append({"event": "beat", "unix_ns": at - 20 * S, "ranks": []})
    broken = gone(0, at - 18 * S, error=error("RuntimeError", BROKEN, at - 19 * S))
    said = told(tmp_path, {"a": [broken], "b": lost})
    assert said.startswith("node node2 with rank 1 has not reported since ")
    assert said.endswith(", and the other ranks lost their connection to it")
    own = gone(0, at - 18 * S, error=error("ValueError", "no such token", at - 19 * S))
    assert told(tmp_path, {"a": [own], "b": lost}).startswith("rank 0 failed first")
    reports = [*lost, {"event": "beat", "unix_ns": at, "ranks": []}]
    assert told(tmp_path, {"a": [broken], "b": reports}).startswith("rank 0 failed first")
    ended = [*lost, {"event": "end", "unix_ns": at - 20 * S}]
    assert told(tmp_path, {"a": [broken], "b": ended}).startswith("rank 0 failed first")


def test_without_heartbeats_nobody_is_named(tmp_path: Path) -> None:
    assert first_death(tmp_path) is None
    assert first(tmp_path, {"a": [{"event": "node"}, gone(0, 5, ended=True)]}) is None
