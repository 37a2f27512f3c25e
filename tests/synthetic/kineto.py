"""Kineto trace files made from a plain description, in every layout that some version of PyTorch writes.

Times are integer nanoseconds. What the readers should make of a file follows from its description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]

HEADER: Record = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108}],
    "distributedInfo": {
        "backend": "nccl",
        "rank": 3,
        "world_size": 8,
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))}],
    },
    "host_name": "node7",
    "baseTimeNanoseconds": 1_711_964_646_000_000_000,
}
FOOTER: Record = {"traceName": "./rank3.json"}


def microseconds(time_ns: int) -> str:
    """As Kineto writes a time: microseconds with three decimals."""
    return f"{'-' * (time_ns < 0)}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


def at(time_ns: int) -> Number:
    """A time as JSON's number, digit by digit."""
    return Number(microseconds(time_ns))


def record(cat: str, name: str, start_ns: int, length_ns: int, *, pid: Any, tid: Any, **args: Any) -> Record:
    """Any complete event; argument names may hold spaces, so they are given as `**{...}`."""
    times = {"ts": at(start_ns), "dur": at(length_ns)}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args}


class Number(str):
    """Text that is written into JSON as a number, digit by digit."""

    __slots__ = ()


def kernel(
    name: str, start_ns: int, length_ns: int, *, cat: Any = "kernel", device: Any = 0, stream: Any = 7,
    correlation: Any = 1, **args: Any,
) -> Record:  # fmt: skip
    """Work on a GPU."""
    context = 1 + device if isinstance(device, int) else 1
    placed = {"device": device, "context": context, "stream": stream, "correlation": correlation}
    return record(cat, name, start_ns, length_ns, pid=device, tid=stream, **placed, **args)


def call(
    name: str, start_ns: int, length_ns: int, *, cat: str = "cuda_runtime", correlation: int = 1, tid: int = 100
) -> Record:
    """A runtime call on the host."""
    return record(cat, name, start_ns, length_ns, pid=50, tid=tid, cbid=211, correlation=correlation)


def said(name: str, start_ns: int, length_ns: int, *, cat: str = "user_annotation", tid: int = 100) -> Record:
    """A range of the program's own."""
    return record(cat, name, start_ns, length_ns, pid=50, tid=tid)


def operator(name: str, start_ns: int, length_ns: int, *, tid: Any = 100, cat: Any = "cpu_op", **args: Any) -> Record:
    """An operator on the host."""
    return record(cat, name, start_ns, length_ns, pid=50, tid=tid, **args)


def python(name: str, start_ns: int, length_ns: int, *, tid: Any = 100) -> Record:
    """A function of the Python program."""
    return record("python_function", name, start_ns, length_ns, pid=50, tid=tid, **{"Python id": 7})


def _dumped(value: Any, **how: Any) -> str:
    marked = json.dumps(_marked(value), **how)
    return re.sub(r'"\\u0000#([-0-9.]*)"', r"\1", marked)


def _marked(value: Any) -> Any:
    """Marks Numbers, so that their quotes can be removed later."""
    if isinstance(value, Number):
        return "\0#" + value
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, list) else value


def _members(record: Record, between: str = ", ") -> str:
    """The members of an object, without its braces."""
    return _dumped(record, separators=(between, ": "))[1:-1]


def _torch_1(record: Record) -> str:
    """torch 1.9 to 2.8: the first keys in one line, the times in one, the arguments in one."""
    first = _members({k: v for k, v in record.items() if k not in ("ts", "dur", "args")})
    times = _members({k: v for k, v in record.items() if k in ("ts", "dur")})
    inner = f',\n    "args": {{\n      {_members(record["args"])}\n    }}' if "args" in record else ""
    return f"\n  {{\n    {first},\n    {times}{inner}\n  }}"


def _torch_2(record: Record) -> str:
    """torch 2.13: one key per line."""
    lines = _members({k: v for k, v in record.items() if k != "args"}, ",\n    ")
    inner = f'\n    ,\n    "args": {{\n      {_members(record["args"])}\n    }}' if "args" in record else ""
    return f"\n  {{\n    {lines}{inner}\n  }}"


def _torch(one: Callable[[Record], str]) -> Callable[[Record, list[Record], Record], str]:
    def write(header: Record, records: list[Record], footer: Record) -> str:
        before = "".join(f"  {_dumped(k)}: {_dumped(v)},\n" for k, v in header.items())
        after = "".join(f",\n  {_dumped(k)}: {_dumped(v)}" for k, v in footer.items())
        return f'{{\n{before}  "traceEvents": [{",".join(map(one, records))}\n  ]{after}\n}}\n'

    return write


def _redumped(**how: Any) -> Callable[[Record, list[Record], Record], str]:
    def write(header: Record, records: list[Record], footer: Record) -> str:
        return _dumped({**header, "traceEvents": records, **footer}, **how)

    return write


def _events_first(header: Record, records: list[Record], footer: Record) -> str:
    return _dumped({"traceEvents": records, **header, **footer}, indent=1)


def _line_each(header: Record, records: list[Record], footer: Record) -> str:
    before = _dumped(header)[:-1]
    return f'{before}, "traceEvents": [\n' + ",\n".join(map(_dumped, records)) + f"\n], {_dumped(footer)[1:]}"


def _turned(header: Record, records: list[Record], footer: Record) -> str:
    backwards = [dict(reversed(record.items())) for record in records]
    return _torch(_torch_2)(header, backwards, footer)


def _wide(header: Record, records: list[Record], footer: Record) -> str:
    return _dumped({**header, "traceEvents": records, **footer}, separators=(" ,\r\n\t", " : "))


LAYOUTS: dict[str, Callable[[Record, list[Record], Record], str]] = {
    "torch 1.9": _torch(_torch_1),
    "torch 2.13": _torch(_torch_2),
    "keys the other way round": _turned,
    "compact": _redumped(separators=(",", ":")),
    "json.dump": _redumped(),
    "indented by 1": _redumped(indent=1),
    "indented by 2": _redumped(indent=2),
    "indented by tabs": _redumped(indent="\t"),
    "keys sorted": _redumped(indent=2, sort_keys=True),
    "one record a line": _line_each,
    "events before all else": _events_first,
    "much white space": _wide,
}


def kineto_text(
    records: Iterable[Record], layout: str = "torch 1.9", header: Record = HEADER, footer: Record = FOOTER
) -> bytes:
    """A trace file's text."""
    return LAYOUTS[layout](header, list(records), footer).encode()


def kineto(path: Path, records: Iterable[Record], layout: str = "torch 1.9", **more: Any) -> Path:
    """Write a Kineto file and return its path."""
    path.write_bytes(kineto_text(records, layout, **more))
    return path


def gpu_step(first_ns: int = 4_458_676_988_068_751, n: int = 0) -> list[Record]:
    """One event of each sort of a GPU trace, with simple known answers. Its launches have the numbers n + 11 to n + 14:
    in one recording no two have the same."""
    t = first_ns
    return [
        {"name": "process_name", "ph": "M", "ts": at(t), "pid": 50, "tid": 0, "args": {"name": "python"}},
        said("ProfilerStep#3", t, 90_000),
        operator("aten::mm", t + 1_000, 9_000, **{"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]}),
        python("train.py(12): step", t, 90_000),
        python("<built-in method mm of type object at 0x7f>", t + 500, 9_900),
        operator("aten::to", t + 12_000, 60_000, **{"Input Dims": [[4, 4], []]}),
        record("overhead", "Activity Buffer Request", t + 2_000, 52_000, pid=-1, tid=0),
        call("cudaLaunchKernel", t + 2_001, 3_000, correlation=n + 11),
        {"ph": "s", "id": n + 11, "pid": 50, "tid": 100, "ts": at(t + 2_001), "cat": "ac2g", "name": "ac2g"},
        kernel("void gemm<float, 2>(float*)", t + 10_003, 20_007, correlation=n + 11, grid=[1, 2, 3]),
        call("cudaMemcpyAsync", t + 5_000, 900, correlation=n + 12),
        kernel("Memcpy HtoD (Pageable -> Device)", t + 30_010, 4_000, cat="gpu_memcpy", correlation=n + 12, bytes=4096),
        kernel("Memset (Device)", t + 35_000, 500, cat="gpu_memset", correlation=n + 13, bytes=64),
        kernel("odd \"name\" with }, {\"cat\": \"kernel\" and \\ in it]", t + 36_000, 1, correlation=n + 14),
        said("ProfilerStep#4", t + 90_000, 5_000),
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": at(t + 95_000)},
    ]  # fmt: skip
