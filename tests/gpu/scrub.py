"""A Kineto trace made small and anonymous: some of its steps, without paths, hosts and users, under a size limit.

Times keep every digit of the file. What is left out is written down: the result is not the full recording.
"""

from __future__ import annotations

import getpass
import gzip
import json
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_BYTES = 1_000_000
STEPS = 5
LEFT_OUT = ("arrows", "shapes of operators")  # but of messages
# Header fields that name the machine or the person, or log a moment, are removed. The others describe the hardware.
DROPPED_KEYS = ("traceName", "host_name", "INFO", "WARNING", "ERROR", "VERBOSE", "trace_id")
KEPT_ARGUMENTS = {
    *("External id", "correlation", "device", "stream", "context", "bytes", "cbid", "grid", "block", "dtype"),
    *("Input type", "Input Dims", "Collective name", "In msg nelems", "Out msg nelems", "Group size"),
    *("Process Group Name", "Process Group Ranks", "Process Group Description", "graph id", "graph node id"),
    *("name", "labels", "sort_index"),
}
PATH = re.compile(r"(?<![\w:<>/])/(?:[\w.+~@-]+/)+[\w.+~@-]*")  # at least two parts: a single slash is a division
MARK = "\x00"
NUMBER = re.compile(r'"\\u0000(-?[0-9.eE+-]+)"')

Trace = dict[str, Any]
Event = dict[str, Any]


class Scrubbed(NamedTuple):
    """The packed trace, and its number of steps."""

    packed: bytes
    steps: int


def scrubbed(path: Path, limit: int = LIMIT_BYTES, most_steps: int = STEPS) -> Scrubbed:
    """The last steps of the trace in `path`, as many as fit. Raises ValueError: no step fits."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        whole = json.load(file, parse_float=lambda text: MARK + text)
    trace = clean(last_steps(whole, most_steps), secrets())
    trace = {**trace, "traceEvents": [thin for each in trace["traceEvents"] if (thin := _thin(each)) is not None]}
    for steps in range(most_steps, 0, -1):
        packed = pack(last_steps(trace, steps))
        if len(packed) <= limit:
            return Scrubbed(packed, min(steps, len(marks(trace))))
    raise ValueError(f"{path.name}: even one step is larger than {limit} bytes")


def _thin(event: Event) -> Event | None:
    """The event without what no report of a GPU's trace reads; None: all of it."""
    message = "comms" in event.get("name", "") or "c10d" in event.get("name", "")
    if event.get("ph") in ("s", "f", "t"):
        return None
    if event.get("cat") != "cpu_op" or message:
        return event
    return {**event, "args": {k: v for k, v in event.get("args", {}).items() if not k.startswith("Input")}}


@cache
def secrets() -> tuple[str, ...]:
    """Names of this machine and this user that must not be in a trace. `root` is common, and part of kernels' names.

    Asks no name server, which may take many seconds to say nothing; the first part of a name is looked for by itself.
    """
    names = {platform.node(), os.environ.get("HOSTNAME", ""), os.environ.get("USER", "")}
    with suppress(KeyError, OSError):  # a user without a name
        names.add(getpass.getuser())
    every = names | {name.partition(".")[0] for name in names}
    telling = (name for name in every if len(name) > 2 and name not in ("root", "localhost"))
    return tuple(sorted(telling, key=len, reverse=True))


def clean(trace: Trace, names: Sequence[str]) -> Trace:
    """The trace without names of places and persons."""
    events = [_clean_event(event, names) for event in trace["traceEvents"]]
    header = {key: cleaned(value, names) for key, value in trace.items() if key not in (*DROPPED_KEYS, "traceEvents")}
    return {**header, "traceEvents": events}


def _clean_event(event: Event, names: Sequence[str]) -> Event:
    kept = {key: cleaned(value, names) for key, value in event.items() if key != "args"}
    args = {k: cleaned(v, names) for k, v in event.get("args", {}).items() if k in KEPT_ARGUMENTS}
    return {**kept, "args": args} if args else kept


def cleaned(value: Any, names: Sequence[str]) -> Any:
    """A value of JSON, each of its texts without names and paths."""
    if isinstance(value, str):
        return clean_text(value, names)
    if isinstance(value, list):
        return [cleaned(item, names) for item in value]
    if isinstance(value, dict):
        return {key: cleaned(item, names) for key, item in value.items()}
    return value


def clean_text(text: str, names: Sequence[str]) -> str:
    """The text without these names, and without paths."""
    for name in names:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "host", text)
    return PATH.sub("path", text)


def leaks(packed: bytes, names: Sequence[str]) -> list[str]:
    """A few of the paths and names that are still in a packed trace."""
    text = gzip.decompress(packed).decode()
    found = [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    strings = set(re.findall(r'"((?:[^"\\]|\\.)*)"', text))
    return [*found, *(path for string in sorted(strings) for path in PATH.findall(string))][:5]


def marks(trace: Trace) -> list[tuple[float, float]]:
    """Start and end of each ProfilerStep on the host, in microseconds."""
    ranges = [e for e in trace["traceEvents"] if (e.get("cat"), e.get("ph")) == ("user_annotation", "X")]
    steps = [e for e in ranges if str(e["name"]).startswith("ProfilerStep#")]
    return sorted((_number(e["ts"]), _number(e["ts"]) + _number(e["dur"])) for e in steps)


def last_steps(trace: Trace, count: int) -> Trace:
    """The trace from the start of its last `count` steps; all of it where it has fewer."""
    found = marks(trace)
    if len(found) <= count:
        return trace
    begin = found[-count][0]
    kept = [e for e in trace["traceEvents"] if e.get("ph") == "M" or _number(e.get("ts", begin)) >= begin]
    return {**trace, "traceEvents": kept}


def _number(value: Any) -> float:
    return float(value[1:] if isinstance(value, str) and value.startswith(MARK) else value)


def pack(trace: Trace) -> bytes:
    """Gzipped JSON, one event a line, with the numbers as they were written; the same bytes in every run."""
    text = "".join(_lines(trace))
    return gzip.compress(NUMBER.sub(r"\1", text).encode(), compresslevel=9, mtime=0)


def _lines(trace: Trace) -> Iterator[str]:
    header = {key: value for key, value in trace.items() if key != "traceEvents"}
    yield json.dumps(header, separators=(",", ":"))[:-1] + (", " if header else "") + '"traceEvents": [\n'
    yield ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace["traceEvents"])
    yield "\n]}\n"
