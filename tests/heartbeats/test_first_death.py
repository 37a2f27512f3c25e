"""Which rank failed first, from what the monitors of the nodes wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.common.run_folder.run_files import HEARTBEATS, MEMORY_SNAPSHOTS
from harness.heartbeats.dead import first_death
from tests.heartbeats.evidences import S

PLACE = ["/home/ann/train.py", 31, "step"]
BROKEN = "[pair.cc:553] Connection closed by peer [10.0.0.1]:4"


def gone(rank: int, at: int, **known: Any) -> dict[str, Any]:
    usual = {"event": "gone", "rank": rank, "pid": 100 + rank, "step": 60, "place": PLACE, "unix_ns": at}
    return {**usual, "ended": False, "oom": None, "error": None, **known}


def error(kind: str, message: str, at: int) -> dict[str, Any]:
    return {"type": kind, "message": message, "place": PLACE, "unix_ns": at}


def broken(rank: int, at: int, error_at: int) -> dict[str, Any]:
    """A rank that only lost its connection to another one."""
    return gone(rank, at, error=error("RuntimeError", BROKEN, error_at))


def raised(rank: int, at: int, kind: str = "ValueError", message: str = "no such token") -> dict[str, Any]:
    return gone(rank, at, error=error(kind, message, at))


def told(run: Path, nodes: dict[str, list[dict[str, Any]]], log: str = "") -> str | None:
    for name, lines in nodes.items():
        path = HEARTBEATS.path(run, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "go')
    (run / "log.err").write_text(log)
    found = first_death(run, run / "log.err")
    return None if found is None else found.sentence


class Case(NamedTuple):
    """What the nodes wrote, the log, and how the sentence begins; None: nobody failed."""

    name: str
    ranks: list[dict[str, Any]]
    sentence: str | None
    log: str = ""


KILLED = "it was ended by the signal KILL (last seen at train.py:31)"
OUT_OF_MEMORY = "the kernel killed it: the job used more memory than its cgroup allows (last seen at train.py:31)"
LEFT = gone(1, 20, ended=True)
CASES = [
    Case("the cause comes before the broken connections of the others", [broken(0, 30, 19), raised(1, 25)],
         "rank 1 failed first, in step 60: ValueError: no such token (train.py:31)"),
    Case("a signal, although others raised before it was seen", [broken(0, 21, 19), gone(1, 20, step=58)],
         f"rank 1 failed first, in step 60: {KILLED}", "exitcode: -9 (pid: 101)\n"),
    Case("out of memory", [broken(0, 21, 19), gone(1, 20, step=58, oom="cgroup")],
         f"rank 1 failed first, in step 60: {OUT_OF_MEMORY}", "exitcode: -9 (pid: 101)\n"),
    Case("a crash in C has its line", [gone(1, 20, error=error("Segmentation fault", "", 20), step=58), gone(0, 21)],
         "rank 1 failed first, in step 60: Segmentation fault (train.py:31)",
         "exitcode: -11 (pid: 101) exitcode: -15 (pid: 100)"),
    Case("victims of one that was killed",
         [gone(1, 20), broken(0, 23, 22), broken(2, 22, 21)],
         f"rank 1 failed first, in step 60: {KILLED}", "exitcode: -9 (pid: 101)"),
    Case("victims of one that raised",
         [raised(1, 20), broken(0, 23, 22), broken(2, 22, 21)],
         "rank 1 failed first, in step 60: ValueError: no such token (train.py:31)"),
    Case("who left, if nobody failed by itself", [broken(0, 30, 29), LEFT],
         "rank 1 left the training in step 60 (last seen at train.py:31), and the others could not go on without it"),
    Case("not who left, if somebody failed", [broken(0, 30, 29), LEFT, raised(2, 25, "KeyError", "'x'")],
         "rank 2 failed first, in step 60: KeyError: 'x' (train.py:31)"),
    Case("who left at once", [broken(0, 30, 29), raised(1, 20, "os._exit", "0")],
         "rank 1 left the training in step 60 by os._exit(0) (train.py:31), and the others could not go on without it"),
    Case("not who was asked to end", [gone(0, 10), raised(1, 20)],
         "rank 1 failed first, in step 60: ValueError: no such token (train.py:31)", "exitcode: -15 (pid: 100)"),
    Case("nobody, where all ended", [{"event": "node"}, gone(0, 5, ended=True)], None),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_failed_first(tmp_path: Path, case: Case) -> None:
    assert told(tmp_path, {"a": case.ranks[:1], "b": case.ranks[1:]}, case.log) == case.sentence


def test_who_held_the_memory_is_told_where_a_snapshot_knows_it(tmp_path: Path) -> None:
    nodes = {"a": [raised(1, 20, "OutOfMemoryError", "CUDA out of memory.")]}
    said = "rank 1 failed first, in step 60: OutOfMemoryError: CUDA out of memory. (train.py:31)"
    assert told(tmp_path, nodes) == said
    held = {"weights": 3 * 10**9, "activations": 12 * 10**9, "inputs": 0, "gradients": 10**9, "other": 5}
    MEMORY_SNAPSHOTS.folder(tmp_path).mkdir()
    MEMORY_SNAPSHOTS.path(tmp_path, 1).write_text(json.dumps({"failure": {"bytes": held}}))
    then = "; tensors held 16.0 GB then: activations 12.0 GB, weights 3.00 GB, gradients 1.00 GB"
    assert told(tmp_path, nodes) == said + then
    assert "tensors held" not in (told(tmp_path, {"a": [raised(1, 20)]}) or ""), "it survived that"


def test_a_node_that_fell_silent_is_first_if_all_others_only_lost_their_connections(tmp_path: Path) -> None:
    at = time.time_ns()
    begun = {"event": "rank", "rank": 1, "world": 2, "unix_ns": at - 60 * S}
    node = {"event": "node", "host": "node2", "unix_ns": at - 60 * S}
    lost = [node, begun, {"event": "beat", "unix_ns": at - 20 * S, "ranks": []}]
    victim = broken(0, at - 18 * S, at - 19 * S)
    said = told(tmp_path, {"a": [victim], "b": lost}) or ""
    assert said.startswith("node node2 with rank 1 has not reported since ")
    assert said.endswith(", and the other ranks lost their connection to it")
    reports = [*lost, {"event": "beat", "unix_ns": at, "ranks": []}]
    ended = [*lost, {"event": "end", "unix_ns": at - 20 * S}]
    for nodes in (
        {"a": [raised(0, at - 19 * S)], "b": lost},
        {"a": [victim], "b": reports},
        {"a": [victim], "b": ended},
    ):
        assert (told(tmp_path, nodes) or "").startswith("rank 0 failed first")


def test_without_heartbeats_nobody_is_named(tmp_path: Path) -> None:
    assert first_death(tmp_path) is None
