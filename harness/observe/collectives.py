"""The collectives of this process, also those that DDP or FSDP begin in C++: from PyTorch's flight recorder where the
backend has one, else from the process groups' own counters. Called from a thread of the observer."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from harness.common.run_folder.heartbeats import CALLS, MESSAGES, PYTHON_SIDE
from harness.observe.lines import is_users

MOST_SIZES = 8  # tensors of one collective
_PEERS = ("src", "dst", "group_src", "group_dst")


def counted() -> int:
    """How many collectives all groups have begun."""
    total = 0
    for group in _groups():
        with suppress(Exception):  # a backend that does not count, or a group that is being destroyed
            total += group._get_sequence_number_for_group()
    return total


class CollectiveStarts(NamedTuple):
    """When collectives began. unix_ns: sorted. since_ns: none that began later is missing."""

    unix_ns: list[int]
    since_ns: int


def launches() -> CollectiveStarts | None:
    """Those that PyTorch recorded, also after the last process group has ended; None: it has recorded none."""
    entries = _recorded(stacks=False).get("entries") or []
    if not entries:
        return None
    began = sorted(entry["time_created_ns"] for entry in entries)
    full = len(entries) >= int(os.environ.get("TORCH_FR_BUFFER_SIZE", "0"))
    return CollectiveStarts(
        sorted(entry["time_created_ns"] for entry in entries if not entry.get("is_p2p")), began[0] if full else 0
    )


def open_ones() -> dict[str, Any]:
    """`collectives`: those that have begun and not ended; `groups`: how far each group is. See `Evidence`. Its
    `recorder` is whether PyTorch records them for this backend."""
    recorded = _recorded(stacks=True)
    entries = recorded.get("entries") or []
    groups = {}
    for group in _groups():
        with suppress(Exception):
            name = str(dist.distributed_c10d._world.pg_names[group])
            groups[name] = {"ranks": _ranks(group), "last": group._get_sequence_number_for_group(), "done": None}
    pending = [_collective(entry, groups) for entry in entries if not _over(entry)]
    for entry in entries:
        known = groups.get(str(entry["process_group"][0]))
        if known is not None and _over(entry) and not entry.get("is_p2p"):
            known["done"] = max(known["done"] or 0, entry["collective_seq_id"])
    return {"collectives": pending, "groups": groups, "recorder": bool(recorded)}


def called(frame: FrameType | None) -> dict[str, Any] | None:
    """The function of torch.distributed that a thread is in, by its frames: where nothing is recorded, as of gloo's
    messages between two ranks."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(PYTHON_SIDE) and frame.f_code.co_name in CALLS:
            local = frame.f_locals
            peer = next((local[name] for name in _PEERS if isinstance(local.get(name), int)), None)
            p2p = frame.f_code.co_name in MESSAGES
            size = list(local["tensor"].size()) if isinstance(local.get("tensor"), torch.Tensor) else None
            said = {"op": frame.f_code.co_name, "p2p": p2p, "peer": peer if p2p else None, "sizes": [size] * bool(size)}
            return said if said["op"] != "init_process_group" else {**said, "meets": {"at": _meeting_point(local)}}
        frame = frame.f_back
    return None


def _meeting_point(local: dict[str, Any]) -> str:
    """The address at which a process meets the others, as its program gave it; empty: it gave none."""
    method = local.get("init_method")
    if isinstance(method, str) and method.startswith("tcp://"):
        return method.removeprefix("tcp://").partition("?")[0].rstrip("/")
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return f"{address}:{port}" if port and (method is None or str(method).startswith("env://")) else ""


def _groups() -> list[Any]:
    if not dist.is_available() or not dist.is_initialized():
        return []
    with suppress(Exception):
        return list(dist.distributed_c10d._world.pg_names)
    return []


def _ranks(group: Any) -> list[int]:
    with suppress(Exception):
        return sorted(dist.distributed_c10d._world.pg_group_ranks[group])
    return []


def _recorded(stacks: bool) -> dict[str, Any]:
    """What PyTorch recorded; empty where it does not."""
    place = getattr(torch._C, "_distributed_c10d", None)
    with suppress(Exception):
        dump = getattr(place, "_dump_fr_trace", None) or getattr(place, "_dump_nccl_trace", None)
        return dict(pickle.loads(dump(True, stacks, False))) if dump else {}
    return {}


def _over(entry: dict[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _collective(entry: dict[str, Any], groups: dict[str, Any]) -> dict[str, Any]:
    group = str(entry["process_group"][0])
    frames = [frame for frame in entry.get("frames") or [] if is_users(frame["filename"])]
    users = frames[0] if frames else None
    return {
        "op": str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"]),
        "group": group,
        "ranks": groups.get(group, {}).get("ranks", []),
        "seq": entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"],
        "p2p": bool(entry.get("is_p2p")),
        "sizes": (entry.get("input_sizes") or [])[:MOST_SIZES],
        "dtypes": (entry.get("input_dtypes") or [])[:MOST_SIZES],
        "line": None if users is None else [users["filename"], users["line"], users["name"]],
        "unix_ns": entry["time_created_ns"],
    }
