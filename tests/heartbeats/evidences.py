"""Evidence of ranks, as a node's monitor writes it."""

from __future__ import annotations

from typing import Any

from harness.common.run_folder.heartbeats import Evidence

NOW_NS = 1_795_000_000_000_000_000
S = 1_000_000_000
TRAIN = ["/home/ann/train.py", 88, "main", True]
DATA = ["/home/ann/data.py", 41, "read_batch", True]
ALL_REDUCE = ["/venv/site-packages/torch/distributed/distributed_c10d.py", 3245, "all_reduce", False]
ENGINE = ["/venv/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward", False]
LOADER = ["/venv/site-packages/torch/utils/data/dataloader.py", 1488, "_try_get_data", False]


def rank(number: int, **known: Any) -> Evidence:
    """A rank that waits for nobody, is quiet for 12 s, and usually takes 100 ms for a step."""
    usual: dict[str, Any] = {
        "rank": number,
        "pid": 1000 + number,
        "since_ns": NOW_NS - 12 * S,
        "quiet_ns": 12 * S,
        "step": 37,
        "place": DATA[:3],
        "usual_ns": S // 10,
        "longest_ns": S // 5,
        "state": "S",
        "waits_in": "",
        "computes": False,
        "threads": {"main": [DATA, TRAIN]},
        "collectives": [],
        "groups": {},
        "children": [],
        "call": None,
        "gone": False,
        "ended": False,
    }
    return Evidence(**{**usual, **known})


def waiting(number: int, world: int = 4, **collective: Any) -> Evidence:
    """A rank that waits in an all-reduce that DDP began."""
    entry = {
        "op": "all_reduce",
        "group": "0",
        "ranks": list(range(world)),
        "seq": 38,
        "p2p": False,
        "sizes": [[1000]],
        "line": TRAIN[:3],
        "unix_ns": NOW_NS - 12 * S,
        **collective,
    }
    where = [ALL_REDUCE, TRAIN] if collective else [ENGINE, TRAIN]
    return rank(number, threads={"main": where}, collectives=[entry], waits_in="waiting for a lock")
