"""The judgement of a run that makes no progress: causes, ranks, lines, and no false ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from harness.common.run_folder.heartbeats import Evidence
from harness.heartbeats.hang import Hang
from harness.heartbeats.preparing import preparation
from harness.heartbeats.silent_nodes import NodeEvidence, SilentNode
from harness.heartbeats.stuck import ADVICE, judge
from tests.heartbeats.evidences import ALL_REDUCE, DATA, LOADER, NOW_NS, TRAIN, S, rank, waiting

OTHERS = "ranks 0, 2 and 3 wait in all_reduce (train.py:88)"


def known_of(ranks: Sequence[Evidence], **known: Any) -> NodeEvidence:
    return NodeEvidence(
        NOW_NS, **{"ranks": ranks, "world": len(ranks), "gone": {}, "silent": [], "alive": False, **known}
    )


def judged(ranks: Sequence[Evidence], **known: Any) -> Hang | None:
    return judge(known_of(ranks, **known))


def with_rank_1(**known: Any) -> list[Evidence]:
    """Three ranks wait for rank 1."""
    return [waiting(0), rank(1, **known), waiting(2), waiting(3)]


def aged(seconds: int, *ranks: Evidence) -> list[Evidence]:
    """The same since so long ago; a rank that was quiet is so for as long."""
    at = NOW_NS - seconds * S
    return [each._replace(since_ns=at, quiet_ns=each.quiet_ns and seconds * S) for each in ranks]


def in_call(number: int, op: str, usual_ns: int = S // 10, **more: Any) -> Evidence:
    """A rank whose main thread is in a function of torch.distributed."""
    call = {"op": op, "p2p": False, "peer": None, "sizes": [], **more}
    return rank(number, call=call, threads={"main": [[ALL_REDUCE[0], 4900, op, False], TRAIN]}, usual_ns=usual_ns)


def receives(number: int, peer: int) -> Evidence:
    return in_call(number, "recv", p2p=True, peer=peer, sizes=[[3]])._replace(waits_in="waiting for a lock")


def meeting(*addresses: str) -> list[Evidence]:
    return aged(70, *(in_call(i, "init_process_group", 0, meets={"at": at}) for i, at in enumerate(addresses)))


IN_OWN_CODE: dict[str, tuple[dict[str, Any], str]] = {
    "sleeps": ({"waits_in": "sleeping"}, "rank 1 is sleeping in data.py:41"),
    "lock": ({"waits_in": "waiting for a lock"}, "rank 1 is waiting for a lock in data.py:41"),
    "file": ({"waits_in": "reading the FIFO /tmp/x"}, "rank 1 is in data.py:41, reading the FIFO /tmp/x"),
    "socket": ({"waits_in": "receiving from a socket"}, "rank 1 is in data.py:41, receiving from a socket"),
    "child": (
        {"waits_in": "waiting for a child, tar (pid 7)"},
        "rank 1 is in data.py:41, waiting for its child tar (pid 7)",
    ),
    "stopped": ({"state": "T", "threads": {}}, "rank 1 is stopped (SIGSTOP), last seen at data.py:41"),
    "own code": ({}, "rank 1 is in data.py:41"),
}


@pytest.mark.parametrize(("kind", "known", "said"), [(k, *v) for k, v in IN_OWN_CODE.items()], ids=IN_OWN_CODE)
def test_a_rank_in_its_own_code_is_named_with_its_line_and_what_it_waits_in(
    kind: str, known: dict[str, Any], said: str
) -> None:
    found = judged(with_rank_1(**known))
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == (kind, (1,), (0, 2, 3))
    assert found.sentence == f"in step 37: {OTHERS}; {said}"
    assert found.place == ("/home/ann/data.py", 41, "read_batch")
    assert found.advice == ADVICE[kind]
    assert found.lines[1].startswith("rank 1: ") and found.lines[0] == (
        "rank 0: waits in all_reduce of 1000 elements (train.py:88)"
    )


class Case(NamedTuple):
    """A scene, and what is found in it; known: what else is known of all nodes. said: in the sentence."""

    name: str
    scene: list[Evidence]
    kind: str
    ranks: tuple[int, ...]
    said: str = ""
    known: dict[str, Any] | None = None


WORKER = {"pid": 77, "program": "python", "state": "S", "computes": False, "waits_in": "sleeping"}
LOADS: dict[str, Any] = {"threads": {"main": [LOADER, TRAIN]}, "children": [WORKER]}
ODD: dict[str, Any] = {"line": ["/home/ann/eval.py", 7, "check"], "op": "broadcast"}
BUSY: dict[str, Any] = {"computes": True, "quiet_ns": 0}
DOWNLOAD: dict[str, Any] = {"waits_in": "receiving from a socket", "quiet_ns": 0}
ENDS = ["/usr/lib/python3.11/threading.py", 1583, "_shutdown", False]
WRAPPER = ["/venv/lib/python3.11/site-packages/deepspeed/utils/nvtx.py", 33, "wrapped_fn", False]
# DeepSpeed gathers parameters before a module computes; the frames name its own wrapper only.
GATHERS = waiting(0, op="all_gather")._replace(threads={"main": [WRAPPER, TRAIN]}, waits_in="waiting for a lock")
SLOW_FILES = {"saves": "torch/serialization.py", "compiles": "torch/_inductor/compile_fx.py", "disk": "x.py"}
SLOW = {
    name: rank(1, threads={"main": [[f"/venv/site-packages/{file}", 1, "f", False], TRAIN]}, state="SD"[name == "disk"])
    for name, file in SLOW_FILES.items()
}
OWN_LOCK = {"collectives": waiting(1).collectives, "waits_in": "waiting for a lock", "threads": {"main": [DATA, TRAIN]}}

CASES = [
    Case("computes for long", aged(61, waiting(0), rank(1, **BUSY)), "computes", (1,),
         "rank 1 is computing in data.py:41"),
    Case("a slow worker", aged(31, waiting(0), rank(1, **LOADS)), "worker", (1,), "(pid 77), which is sleeping"),
    Case("a stopped worker", with_rank_1(**{**LOADS, "children": [{**WORKER, "state": "T"}]}), "worker", (1,),
         "(pid 77), which is stopped"),
    Case("a dead worker", with_rank_1(**{**LOADS, "children": [{**WORKER, "state": "Z"}]}), "worker died", (1,)),
    *(Case(f"long: {name}", aged(31, waiting(0), slow), "disk" if name == "disk" else "own code", (1,))
      for name, slow in SLOW.items()),
    Case("an endless download", aged(700, waiting(0), rank(1, **DOWNLOAD)), "socket", (1,)),
    # Ranks that are not there.
    Case("gone", [waiting(0, 2)], "gone", (1,), known={"gone": {1: False}, "world": 2}),
    Case("left", [waiting(0, 2)], "left early", (1,), known={"gone": {1: True}, "world": 2}),
    Case("ended", [waiting(0, 2), rank(1, ended=True, threads={"main": []})], "left early", (1,)),
    Case("left but for a thread", with_rank_1(threads={"main": [ENDS]}), "left early", (1,),
         "rank 1 has left the training"),
    Case("a silent node", [waiting(0), waiting(1)], "node gone", (2, 3),
         known={"silent": [SilentNode("node2", (2, 3), NOW_NS - 25 * S)], "world": 4}),
    # Collectives that do not fit together.
    Case("another", [waiting(0), waiting(1), waiting(2, **ODD), waiting(3)], "other collective", (2,),
         "rank 2 waits in broadcast of 1000 elements (eval.py:7)"),
    Case("a size", [waiting(0, sizes=[[5]]), waiting(1, sizes=[[7]]), waiting(2, sizes=[[5]])], "other size", (1,)),
    Case("a count", [waiting(0), waiting(1), waiting(2, seq=39)], "other collective", (2,)),
    Case("of two nobody knows which is wrong", [waiting(0), waiting(1, **ODD)], "other collective", (0, 1),
         "rank 0 waits in all_reduce of 1000 elements (train.py:88); rank 1 waits in broadcast"),
    Case("the same", [waiting(0), waiting(1)], "network", ()),
    Case("alone in new_group", [waiting(0), in_call(1, "new_group")], "group", (1,),
         "rank 1 alone is in new_group (train.py:88), which all ranks of the job must call"),
    Case("together in new_group", [in_call(0, "new_group"), in_call(1, "new_group")], "network", ()),
    Case("one address", meeting("a:1", "a:1"), "network", (),
         "all ranks are in init_process_group (train.py:88) at a:1, and it does not end"),
    Case("two addresses", meeting("a:1", "b:1"), "meeting", (), "at different addresses, a:1 and b:1"),
    Case("two groups in opposite order", [waiting(0, group="1", ranks=[0, 1]), waiting(1, group="2", ranks=[0, 1])],
         "order", (0, 1)),
    Case("a receive is followed to its end", [receives(0, 1), receives(1, 2), waiting(2, 3)], "no partner", (1,),
         "rank 1 waits to receive from rank 2 (train.py:88), which waits in all_reduce (train.py:88)"),
    Case("a receive from one that sleeps", [receives(0, 1), rank(1, waits_in="sleeping")], "sleeps", (1,)),
    # A collective that DDP began may be open while the main thread waits for something else.
    Case("a lock of the user's own", with_rank_1(**OWN_LOCK), "lock", (1,)),
    Case("a library waits in C", aged(70, GATHERS, rank(1, **BUSY)), "computes", (1,)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_and_its_ranks_are_named(case: Case) -> None:
    found = judged(case.scene, **(case.known or {}))
    assert found is not None
    assert (found.kind, found.ranks) == (case.kind, case.ranks)
    assert case.said in found.sentence


LATE = aged(70, waiting(0), waiting(2))
ALIVE: dict[str, list[Evidence]] = {
    "it computes": with_rank_1(**BUSY),
    "a loader may be slow": with_rank_1(**LOADS),
    **{f"it may take long: {name}": [waiting(0), slow] for name, slow in SLOW.items()},
    "below ten usual steps": [each._replace(usual_ns=2 * S) for each in with_rank_1(waits_in="sleeping")],
    "no step has ended": [each._replace(usual_ns=0, longest_ns=0) for each in with_rank_1(waits_in="sleeping")],
    "bytes of a download arrive": [*LATE, *aged(70, rank(1, **DOWNLOAD))],
    "the others came to it 70 s ago": [*LATE, *aged(700, rank(1, **DOWNLOAD))],
    "a library waits for one that may compute": [GATHERS, rank(1, **BUSY)],
}


@pytest.mark.parametrize("scene", ALIVE.values(), ids=ALIVE)
def test_who_may_be_slow_is_not_stuck(scene: list[Evidence]) -> None:
    assert judged(scene) is None


# ---- Before a step has ended


def first(number: int, seconds: int = 62, **known: Any) -> Evidence:
    """A rank that has ended no step and is quiet for so long."""
    return aged(seconds, rank(number, step=0, usual_ns=0, longest_ns=0, **known))[0]


BARRIER = in_call(0, "barrier", 0)._replace(step=0, since_ns=NOW_NS - 62 * S, quiet_ns=62 * S)
CHILD = {"pid": 77, "program": "ninja", "state": "S", "computes": False, "waits_in": "polling"}
WORKS: dict[str, tuple[dict[str, Any], str]] = {
    "computes": (BUSY, "computing in data.py:41"),
    "reads": ({"quiet_ns": 0}, "reading or writing in data.py:41"),
    "reads from a disk that does not answer": ({"state": "D"}, "waiting for a disk in data.py:41"),
    "compiles": ({"children": [CHILD, {**CHILD, "program": "cc1plus", "computes": True}]},
                 "compiling in data.py:41: cc1plus works"),
    "compiles in short pieces": ({"children": [CHILD], "quiet_ns": 0}, "compiling in data.py:41"),
    "has workers": ({"children": [{**CHILD, "program": "tokenize", "state": "R"}], "waits_in": "sleeping"},
                    "waiting for a child in data.py:41: tokenize works"),
}  # fmt: skip


@pytest.mark.parametrize(("known", "doing"), WORKS.values(), ids=WORKS)
@pytest.mark.parametrize("minutes", [1, 600])
def test_before_a_step_has_ended_no_time_makes_a_run_stuck_in_which_a_rank_works(
    known: dict[str, Any], doing: str, minutes: int
) -> None:
    scene = [BARRIER, first(1, 60 * minutes + 2, **known)]
    assert judged(scene) is None
    assert preparation(known_of(scene)) == f"No step has ended yet: rank 0 waits 1 min 2 s for rank 1, which is {doing}"
    both = preparation(known_of([scene[1]._replace(rank=0), scene[1]]))
    assert "the run waits" in both and both.endswith(f"for ranks 0 and 1, which are {doing}")


def test_a_rank_whose_python_does_not_answer_may_wait_for_a_core() -> None:
    assert [judged([BARRIER, first(1, seconds, threads={})]) is None for seconds in (62, 181)] == [True, False]


UNSEEN: dict[str, tuple[dict[str, Any], str]] = {
    "not begun": ({"world": 2}, "rank 1, which is not there yet"),
    "a silent node": (
        {"silent": [SilentNode("node2", (1,), NOW_NS - 90 * S)]},
        "rank 1, which is on node2, which is silent",
    ),
    "makes progress": ({"world": 2, "alive": True}, ""),
}


@pytest.mark.parametrize(("known", "who"), UNSEEN.values(), ids=UNSEEN)
def test_a_rank_of_which_nothing_is_seen_may_work(known: dict[str, Any], who: str) -> None:
    assert judged([BARRIER], **known) is None
    assert preparation(known_of([BARRIER], **known)).endswith(who)


SPINS: dict[str, Any] = {"state": "R", "computes": True, "quiet_ns": 0}  # as a rank does that waits in NCCL
ASLEEP: dict[str, tuple[list[Evidence], str, tuple[int, ...]]] = {
    "a lock": ([BARRIER, first(1, waits_in="waiting for a lock")], "lock", (1,)),
    "a child that sleeps": ([BARRIER, first(1, waits_in="waiting for a child", children=[CHILD])], "child", (1,)),
    "stopped": ([BARRIER, first(1, state="T", threads={})], "stopped", (1,)),
    "all in one collective": ([BARRIER, BARRIER._replace(rank=1)], "network", ()),
    "a spinning rank waits for one that sleeps": (
        [waiting(0, 2)._replace(**SPINS, usual_ns=0, since_ns=NOW_NS - 62 * S), first(1, waits_in="sleeping")],
        "sleeps",
        (1,),
    ),
}


@pytest.mark.parametrize(("scene", "kind", "ranks"), ASLEEP.values(), ids=ASLEEP)
def test_a_run_in_which_nobody_works_is_stuck_before_its_first_step_too(
    scene: list[Evidence], kind: str, ranks: tuple[int, ...]
) -> None:
    found = judged(scene)
    assert found is not None and (found.kind, found.ranks) == (kind, ranks)
    assert preparation(known_of(scene)) == ""
    assert judged([each._replace(since_ns=NOW_NS - 59 * S) for each in scene]) is None
    assert found.step or found.sentence.startswith("before the first step has ended: ")
