"""A recording as torch.profiler writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .program import MAIN, Recording, Work

_CATEGORY = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}
_KIND = {
    "operator": "cpu_op",
    "python": "python_function",
    "range": "user_annotation",
    "torch": "user_annotation",
    "step": "user_annotation",
    "collector": "python_function",
}
_NODE = 4  # ranks with the same clock
_PID = 5000


def write_kineto(
    recording: Recording, world_size: int, path: Path, *, python: bool, skew_ns: int = 0, named: bool = True
) -> Path:
    """One rank's file. python: with its Python functions. skew_ns: of its node's clock, later than that of the first
    node. named: with its rank and the world size, as PyTorch writes them since 2.0."""
    rank = recording.rank
    device = rank % _NODE
    group = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world_size, "ranks": list(range(world_size))}]
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": device, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_config": group},
        "host_name": f"node{rank // _NODE}",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    if world_size == 1 or not named:
        del header["distributedInfo"]
    return _write(header, _records(recording, python=python, skew_ns=skew_ns * (rank // _NODE)), path)


def _write(header: dict[str, object], lines: Sequence[str], path: Path) -> Path:
    text = json.dumps(header)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"
    path.write_text(text, encoding="utf-8")
    return path


def _records(recording: Recording, *, python: bool, skew_ns: int = 0) -> list[str]:
    """A rank's events, one line each."""
    rank = recording.rank
    pid, begin = _PID + rank, 1_000_000_000 + skew_ns
    device = rank % _NODE
    lines = [_process(pid, rank)]

    def add(cat: str, name: str, span: tuple[int, int], place: tuple[int, int], args: str) -> None:
        (start, end), (process, thread) = span, place
        at, took = start + begin, end - start
        lines.append(
            f'{{"ph": "X", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {process}, "tid": {thread}, '
            f'"ts": {at // 1000}.{at % 1000:03d}, "dur": {took // 1000}.{took % 1000:03d}, "args": {{{args}}}}}'
        )

    for kind, thread, name, start, end in sorted(recording.spans, key=lambda s: (s.start, -s.end)):
        if kind in ("python", "collector") and not python:
            continue
        shown = {"step": f"ProfilerStep#{name}", "collector": "Python GC"}.get(kind, name)
        number = '"External id": 1' if kind != "python" else '"Python id": 1'
        add(_KIND[kind], shown, (start, end), (pid, thread), number)
    for thread, name, start, end, call in recording.calls:
        add("cuda_runtime", name, (start, end), (pid, thread), f'"cbid": 211, "correlation": {call}')
    for work, call in recording.work:
        args = f'"device": {device}, "context": 1, "stream": {work.stream}, "correlation": {call}{_arguments(work)}'
        add(_CATEGORY[work.kind], _name(work), (work.start, work.end), (device, work.stream), args)
    return lines


def _process(pid: int, rank: int) -> str:
    record = {"name": "process_name", "ph": "M", "ts": 1, "pid": pid, "tid": MAIN}
    return json.dumps(record | {"args": {"name": f"python {rank}"}})


def _name(work: Work) -> str:
    if work.kind != "copy":
        return work.name
    host = work.memory.capitalize()
    sides = f"{host} -> Device" if work.direction == "HtoD" else f"Device -> {host}"
    return f"Memcpy {work.direction} ({sides})"


def _arguments(work: Work) -> str:
    message = work.message
    if message is None:
        return f', "bytes": {work.size}' if work.kind != "kernel" else ""
    values: dict[str, object] = {
        "Collective name": {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}.get(
            message.kind, message.kind.replace("all_reduce", "allreduce")
        ),
        "In msg nelems": message.elements,
        "Out msg nelems": message.elements,
        "Group size": len(message.members),
        "dtype": message.dtype,
        "Process Group Name": message.group,
        "Process Group Ranks": str(list(message.members)),
    }
    n = len(message.members)
    if message.kind == "all_gather":
        values["In msg nelems"] = message.elements // n
    if message.kind == "reduce_scatter":
        values["Out msg nelems"] = message.elements // n
    if message.kind in ("send", "recv"):
        values["Src Rank" if message.kind == "recv" else "Dst Rank"] = message.members[message.kind == "send"]
    return ", " + json.dumps(values)[1:-1]
