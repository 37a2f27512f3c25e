"""The judgement of a run that makes no progress: causes, ranks, lines, and no false ones."""

from __future__ import annotations

from typing import Any

import pytest

from harness.common.heartbeats import Evidence
from harness.heartbeats.hang import Hang
from harness.heartbeats.silent_nodes import SilentNode
from harness.heartbeats.stuck import ADVICE, NodeEvidence, judge
from tests.heartbeats.evidences import ALL_REDUCE, DATA, ENGINE, LOADER, NOW_NS, TRAIN, S, rank, waiting

OTHERS = "ranks 0, 2 and 3 wait in all_reduce (train.py:88)"


def judged(*ranks: Evidence, **known: Any) -> Hang | None:
    seen = {"world": len(ranks), "gone": {}, "silent": [], "alive": False, **known}
    return judge(NodeEvidence(NOW_NS, ranks=ranks, **seen))


def with_rank_1(**known: Any) -> Hang | None:
    """Three ranks wait for rank 1."""
    return judged(waiting(0), rank(1, **known), waiting(2), waiting(3))


IN_OWN_CODE: dict[str, tuple[dict[str, Any], str]] = {
    "sleeps": ({"waits_in": "sleeping"}, "rank 1 is sleeping in data.py:41"),
    "lock": ({"waits_in": "waiting for a lock"}, "rank 1 is waiting for a lock in data.py:41"),
    "file": ({"waits_in": "reading the FIFO /tmp/x"}, "rank 1 is in data.py:41, reading the FIFO /tmp/x"),
    "socket": ({"waits_in": "receiving from a socket"}, "rank 1 is in data.py:41, receiving from a socket"),
    "child": (
        {"waits_in": "waiting for a child, tar (pid 7)"},
        "rank 1 is in data.py:41, waiting for its child tar (pid 7)",
    ),
    "stopped": ({"state": "T"}, "rank 1 is stopped (SIGSTOP) in data.py:41"),
    "frozen": ({"frozen": True, "state": "D"}, "rank 1 is frozen (cgroup) in data.py:41"),
    "own code": ({}, "rank 1 is in data.py:41"),
}


@pytest.mark.parametrize(("kind", "known", "said"), [(k, *v) for k, v in IN_OWN_CODE.items()], ids=IN_OWN_CODE)
def test_a_rank_in_its_own_code_is_named_with_its_line_and_what_it_waits_in(
    kind: str, known: dict[str, Any], said: str
) -> None:
    found = with_rank_1(**known)
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == (kind, (1,), (0, 2, 3))
    assert found.sentence == f"in step 37: {OTHERS}; {said}"
    assert found.place == ("/home/ann/data.py", 41, "read_batch")
    assert found.advice == ADVICE[kind]
    assert found.lines[1].startswith("rank 1: ") and found.lines[0] == (
        "rank 0: waits in all_reduce of 1000 elements (train.py:88)"
    )


def test_who_computes_or_reads_files_counts_as_stuck_after_a_longer_time() -> None:
    busy = {"computes": True, "quiet_ns": 0}
    assert with_rank_1(**busy) is None
    since = NOW_NS - 61 * S
    ranks = [each._replace(since_ns=since) for each in (waiting(0), rank(1, **busy))]
    found = judged(*ranks)
    assert found is not None
    assert (found.kind, found.ranks) == ("computes", (1,))
    assert "rank 1 is computing in data.py:41" in found.sentence


def test_a_loader_may_be_slow_for_three_times_as_long_unless_its_worker_is_dead_or_stopped() -> None:
    worker = {"pid": 77, "program": "python", "state": "S", "frozen": False, "computes": False}
    worker |= {"waits_in": "sleeping"}
    loads = {"threads": {"main": [LOADER, TRAIN]}, "children": [worker]}
    assert with_rank_1(**loads) is None
    since = NOW_NS - 31 * S
    long = [each._replace(since_ns=since, quiet_ns=31 * S) for each in (waiting(0), rank(1, **loads))]
    found = judged(*long)
    assert found is not None
    assert (found.kind, found.ranks) == ("worker", (1,))
    assert "a worker of its data loader (pid 77), which is sleeping" in found.sentence
    stopped = with_rank_1(**{**loads, "children": [{**worker, "state": "T"}]})
    assert stopped is not None
    assert "(pid 77), which is stopped" in stopped.sentence
    frozen = with_rank_1(**{**loads, "children": [{**worker, "frozen": True}]})
    assert frozen is not None
    assert "(pid 77), which is frozen (cgroup)" in frozen.sentence
    died = with_rank_1(**{**loads, "children": [{**worker, "state": "Z"}]})
    assert died is not None
    assert died.kind == "worker died"


@pytest.mark.parametrize(
    ("file", "state"),
    [("torch/serialization.py", "S"), ("torch/_inductor/compile_fx.py", "S"), ("x.py", "D")],
    ids=["saves", "compiles", "disk"],
)
def test_what_is_known_to_be_slow_has_three_times_as_long(file: str, state: str) -> None:
    frames = [[f"/venv/site-packages/{file}", 1, "f", False], TRAIN]
    assert with_rank_1(threads={"main": frames}, state=state) is None
    since = NOW_NS - 31 * S
    slow = rank(1, threads={"main": frames}, state=state, since_ns=since, quiet_ns=31 * S)
    assert judged(waiting(0)._replace(since_ns=since), slow) is not None


def test_below_ten_usual_steps_nothing_is_said() -> None:
    slow: dict[str, Any] = {"usual_ns": 2 * S}
    assert judged(waiting(0)._replace(**slow), rank(1, waits_in="sleeping", **slow)) is None
    before: dict[str, Any] = {"usual_ns": 0, "longest_ns": 0}
    assert judged(waiting(0)._replace(**before), rank(1, waits_in="sleeping", **before)) is None


def test_a_node_whose_ranks_make_progress_keeps_the_run_alive() -> None:
    assert judged(waiting(0), waiting(1), alive=True) is None


def test_ranks_that_are_not_there_come_first() -> None:
    gone = judged(waiting(0, 2), gone={1: False}, world=2)
    left = judged(waiting(0, 2), gone={1: True}, world=2)
    ended = judged(waiting(0, 2), rank(1, ended=True, threads={"main": []}))
    silent = judged(waiting(0), waiting(1), silent=[SilentNode("node2", (2, 3), NOW_NS - 25 * S)], world=4)
    assert [(f.kind, f.ranks) for f in (gone, left, ended, silent) if f] == [
        ("gone", (1,)),
        ("left early", (1,)),
        ("left early", (1,)),
        ("node gone", (2, 3)),
    ]
    begun = {"step": 0, "usual_ns": 0, "since_ns": NOW_NS - 61 * S}
    call = {"op": "init_process_group", "p2p": False, "peer": None, "sizes": []}
    first = rank(0, **begun, call=call, threads={"main": [ALL_REDUCE, TRAIN]})
    never = judged(first, world=2)
    assert never is not None
    assert (never.kind, never.ranks) == ("never began", (1,))


def test_collectives_that_do_not_fit_together_are_told_apart() -> None:
    odd: dict[str, Any] = {"line": ["/home/ann/eval.py", 7, "check"], "op": "broadcast"}
    found = judged(waiting(0), waiting(1), waiting(2, **odd), waiting(3))
    assert found is not None
    assert (found.kind, found.ranks) == ("other collective", (2,))
    assert found.sentence.endswith("rank 2 waits in broadcast of 1000 elements (eval.py:7)")
    size = judged(waiting(0, sizes=[[5]]), waiting(1, sizes=[[7]]), waiting(2, sizes=[[5]]))
    assert size is not None
    assert (size.kind, size.ranks) == ("other size", (1,))
    count = judged(waiting(0), waiting(1), waiting(2, seq=39))
    assert count is not None
    assert (count.kind, count.ranks) == ("other collective", (2,))
    two = judged(waiting(0), waiting(1, **odd))
    assert two is not None
    assert two.ranks == (0, 1), "of two that differ nobody knows which is wrong"
    assert "rank 0 waits in all_reduce" in two.sentence and "rank 1 waits in broadcast" in two.sentence
    same = judged(waiting(0), waiting(1))
    assert same is not None
    assert (same.kind, same.ranks) == ("network", ())


def in_call(number: int, op: str, **more: Any) -> Evidence:
    """A rank whose main thread is in a function of torch.distributed."""
    call = {"op": op, "p2p": False, "peer": None, "sizes": [], **more}
    return rank(number, call=call, threads={"main": [[ALL_REDUCE[0], 4900, op, False], TRAIN]}, usual_ns=0, step=0)


def test_a_rank_that_is_alone_in_new_group_is_named() -> None:
    found = judged(waiting(0), in_call(1, "new_group")._replace(usual_ns=S // 10))
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == ("group", (1,), (0,))
    assert found.sentence.endswith("rank 1 alone is in new_group (train.py:88), which all ranks of the job must call")
    together = judged(*(in_call(number, "new_group")._replace(usual_ns=S // 10) for number in range(2)))
    assert together is not None and together.kind == "network"


def test_ranks_that_cannot_meet_are_told_who_has_their_port() -> None:
    def meeting(listener: str | None, *at: str) -> Hang | None:
        late = NOW_NS - 70 * S
        ranks = [in_call(i, "init_process_group", meets={"at": x, "listener": listener}) for i, x in enumerate(at)]
        return judged(*(each._replace(since_ns=late, quiet_ns=70 * S) for each in ranks))

    taken = meeting("another program has this port, nc (pid 7)", "127.0.0.1:29500", "127.0.0.1:29500")
    assert taken is not None and taken.kind == "meeting"
    assert taken.sentence.endswith(
        "all ranks are in init_process_group (train.py:88) at 127.0.0.1:29500, and it does not end: another "
        "program has this port, nc (pid 7)"
    )
    known = meeting(None, "127.0.0.1:29500", "127.0.0.1:29500")
    assert known is not None and known.kind == "network"
    apart = meeting(None, "a:1", "b:1")
    assert apart is not None and apart.kind == "meeting"
    assert apart.sentence.endswith("at different addresses, a:1 and b:1")


def test_a_download_whose_bytes_still_arrive_has_long() -> None:
    slow = {"waits_in": "receiving from a socket", "quiet_ns": 0}
    others = [waiting(number)._replace(since_ns=NOW_NS - 70 * S) for number in (0, 2, 3)]
    assert judged(*others, rank(1, **slow, since_ns=NOW_NS - 70 * S)) is None
    assert judged(*others, rank(1, **slow, since_ns=NOW_NS - 700 * S)) is None, "the others came to it 70 s ago"
    late = [each._replace(since_ns=NOW_NS - 700 * S) for each in others]
    found = judged(*late, rank(1, **slow, since_ns=NOW_NS - 700 * S))
    assert found is not None and found.kind == "socket"


def test_two_groups_in_opposite_order() -> None:
    a: dict[str, Any] = {"group": "1", "ranks": [0, 1]}
    b: dict[str, Any] = {"group": "2", "ranks": [0, 1]}
    found = judged(waiting(0, **a), waiting(1, **b))
    assert found is not None
    assert (found.kind, found.ranks) == ("order", (0, 1))


def test_a_receive_without_its_send_is_followed_to_its_end() -> None:
    def receives(number: int, peer: int) -> Evidence:
        call = {"op": "recv", "p2p": True, "peer": peer, "sizes": [[3]]}
        frame = [ALL_REDUCE[0], 2500, "recv", False]
        return rank(number, call=call, threads={"main": [frame, TRAIN]}, waits_in="waiting for a lock")

    found = judged(receives(0, 1), receives(1, 2), waiting(2, 3))
    assert found is not None
    assert (found.kind, found.ranks) == ("no partner", (1,))
    assert found.sentence.endswith(
        "rank 1 waits to receive from rank 2 (train.py:88), which waits in all_reduce (train.py:88)"
    )
    sleeps = judged(receives(0, 1), rank(1, waits_in="sleeping"))
    assert sleeps is not None
    assert (sleeps.kind, sleeps.ranks) == ("sleeps", (1,))


def test_a_lock_of_the_users_own_is_no_collective() -> None:
    """A collective that DDP began may be open while the main thread waits for something else."""
    entry = waiting(1).collectives
    found = with_rank_1(collectives=entry, waits_in="waiting for a lock", threads={"main": [DATA, TRAIN]})
    assert found is not None
    assert (found.kind, found.ranks) == ("lock", (1,))
    assert ENGINE[2] == "_engine_run_backward"


def test_a_library_that_waits_in_c_for_what_it_has_begun_waits_for_ranks() -> None:
    """DeepSpeed gathers parameters before a module computes; the frames name its own wrapper only."""
    wrapper = ["/venv/lib/python3.11/site-packages/deepspeed/utils/nvtx.py", 33, "wrapped_fn", False]
    gathers = waiting(0, op="all_gather")._replace(threads={"main": [wrapper, TRAIN]}, waits_in="waiting for a lock")
    computes = rank(1, quiet_ns=0, computes=True, since_ns=NOW_NS - 70 * S, threads={"main": [DATA, TRAIN]})
    found = judged(gathers._replace(since_ns=NOW_NS - 70 * S), computes)
    assert found is not None
    assert (found.kind, found.ranks, found.waiting) == ("computes", (1,), (0,))
    assert judged(gathers, computes._replace(since_ns=NOW_NS - 12 * S)) is None, "it may compute for long"


def test_a_rank_whose_program_has_ended_but_not_its_threads_has_left() -> None:
    found = with_rank_1(threads={"main": [["/usr/lib/python3.11/threading.py", 1583, "_shutdown", False]]})
    assert found is not None
    assert (found.kind, found.ranks) == ("left early", (1,))
    assert found.sentence.endswith("rank 1 has left the training")
    assert found.lines[1] == "rank 1: its program has ended, and its process is still there"
