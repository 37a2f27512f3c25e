"""Says whether the ranges of task 1a-optional are in a trace. Needs nothing but Python.

    python exercises/exercise_1_DDP/check_ranges.py RUN-OR-TRACE…

Takes torch.profiler's .json or .json.gz, nsys' .sqlite, or a run's folder with such files somewhere in it.
Exit code 0: all ranges are there; 1: some are missing or misplaced; 2: there is no trace, or one cannot be read.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACES = ("*.json.gz", "*.pt.trace.json", "*.sqlite")
STEP = "batch_<i>"
# Each range with the pattern of its name, and whether every step has one.
EXPECTED = {
    STEP: (r"batch_\d+", True),
    "DataLoad batch <i>": (r"DataLoad batch \d+", True),
    "forward": (r"forward", True),
    "backward": (r"backward", True),
    "optimizer_step": (r"optimizer_step", False),
    "scheduler_step": (r"scheduler_step", False),
    "zero_grad": (r"zero_grad", False),
}


class Unreadable(Exception):
    """A file is no trace, or only a part of one; the message says why, as a clause."""


@dataclass(frozen=True)
class Range:
    """A named stretch of time on one thread, in the trace's own unit."""

    name: str
    thread: object
    start: float
    end: float


def main(arguments: Sequence[str]) -> int:
    """Check every trace named; print one line per finding."""
    traces = [trace for argument in arguments for trace in find_traces(Path(argument))]
    if not traces:
        print(
            "no trace found: name a run's folder, a .json.gz or a .sqlite. "
            "Was the profiler started and moved on (GAPs 2 and 3)?"
        )
        return 2
    return max(report(trace) for trace in traces)


def find_traces(path: Path) -> list[Path]:
    """`path` itself, or the traces somewhere below it."""
    if path.is_dir():
        return sorted(found for pattern in TRACES for found in path.rglob(pattern) if found.name[0] != ".")
    return [path] if path.is_file() else []


def report(trace: Path) -> int:
    """Print what is right and wrong in one trace; 0 when all is right, 1 when not, 2 when it cannot be read."""
    try:
        findings = check(read_ranges(trace))
    except Unreadable as why:
        print(f"{trace}: {why}")
        return 2
    for right, sentence in findings:
        print(f"{trace.name}: {'ok     ' if right else 'MISSING'} {sentence}")
    return 0 if all(right for right, _ in findings) else 1


def check(ranges: Sequence[Range]) -> list[tuple[bool, str]]:
    """For each expected range: is it there, often enough, and inside a step?"""
    found = {
        name: [r for r in ranges if re.fullmatch(pattern, r.name)] for name, (pattern, _) in EXPECTED.items()
    }
    steps = found[STEP]
    return [_judge(name, found[name], steps, EXPECTED[name][1]) for name in EXPECTED]


def _judge(name: str, found: Sequence[Range], steps: Sequence[Range], every_step: bool) -> tuple[bool, str]:
    outside = [r for r in found if not any(_inside(r, step) for step in steps)]
    if not found:
        return False, f"{name}: not in the trace"
    if every_step and len(found) < len(steps):
        return False, f"{name}: {len(found)} times in {len(steps)} steps"
    if steps and not all(_cut_off(r, steps) for r in outside):
        return False, f"{name}: {len(outside)} of {len(found)} lie outside every {STEP}"
    return True, f"{name}: {len(found)} times"


def _cut_off(part: Range, steps: Sequence[Range]) -> bool:
    """Is it what is left of a step that recording began or ended in? Its step's own range is not in the trace."""
    own = [step for step in steps if step.thread == part.thread]
    return all(part.end <= step.start for step in own) or all(part.start >= step.end for step in own)


def _inside(inner: Range, outer: Range) -> bool:
    slack = 0.001  # Kineto's microseconds, as floats, carry about a nanosecond of rounding
    return (
        inner.thread == outer.thread and outer.start <= inner.start + slack and inner.end <= outer.end + slack
    )


def read_ranges(trace: Path) -> list[Range]:
    """The ranges that the program itself wrote into a trace.

    Raises:
        Unreadable: the file is no trace, or cut short.
    """
    try:
        return list(_nsys_ranges(trace) if trace.suffix == ".sqlite" else _kineto_ranges(trace))
    except (EOFError, zlib.error, sqlite3.DatabaseError) as error:
        raise Unreadable(f"damaged or cut short ({error})") from None
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Unreadable("not a trace of torch.profiler (.json, .json.gz) or nsys (.sqlite)") from None


def _kineto_ranges(trace: Path) -> Iterable[Range]:
    content = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    events: list[dict[str, Any]] = json.loads(content)["traceEvents"]
    for event in events:
        if event.get("cat") == "user_annotation" and event.get("ph") == "X":
            start = float(event["ts"])
            yield Range(event["name"], event["tid"], start, start + float(event["dur"]))


def _nsys_ranges(trace: Path) -> Iterable[Range]:
    query = """
        SELECT coalesce(e.text, s.value), e.globalTid, e.start, e.end
        FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId
        WHERE e.end IS NOT NULL
    """
    connection = sqlite3.connect(f"{trace.absolute().as_uri()}?mode=ro", uri=True)
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone():
            return  # nsys makes the table with the first range
        for name, thread, start, end in connection.execute(query):
            if name is not None:
                yield Range(name, thread, start, end)
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
