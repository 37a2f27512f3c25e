"""Checks whether the script of task 1a-optional starts and stops the profiler, and whether its ranges are in the trace.
Needs only Python: the harness reads the trace.

    python exercises/exercise_1_DDP/check_ranges.py last

Takes runs as `slurm.sh` does (`last`, a job id, a name, a folder), or traces: torch.profiler's .json or .json.gz,
nsys' .sqlite. Exit code 0: all is there; 1: something is missing or misplaced; 2: there is no trace, or one cannot
be read.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

SLURM_SH = Path(__file__).resolve().parents[2] / "slurm.sh"  # in a checkout; else the wheel's command is on PATH
HARNESS = ["bash", str(SLURM_SH)] if SLURM_SH.is_file() else ["training-traces"]
COMMAND = "bash slurm.sh" if Path("slurm.sh").is_file() else shlex.join(HARNESS)  # as it can be typed here
TRACES = ("*.json.gz", "*.pt.trace.json", "*.sqlite")
DAMAGE = re.compile("damaged|in the middle")  # in what the harness notes about a trace
NOTHING = "the traces hold no events and no ranges"  # the harness has nothing to write
NO_START = "torch.cuda.cudart().cudaProfilerStart() starts the recording (GAP 1)"


class ExpectedRange(NamedTuple):
    """A range of the solution. pushed: its name in the script; gap: that it fills; every_step: each step has one."""

    label: str
    pattern: str
    pushed: str
    gap: int
    every_step: bool

    @property
    def advice(self) -> str:
        push = f"torch.cuda.nvtx.range_push({self.pushed})"
        return f"{push} before it, torch.cuda.nvtx.range_pop() after it (GAP {self.gap})"


STEP = ExpectedRange("batch_<i>", r"batch_\d+", 'f"batch_{step}"', 3, True)
EXPECTED = [
    STEP,
    ExpectedRange("DataLoad batch <i>", r"DataLoad batch \d+", 'f"DataLoad batch {step}"', 4, True),
    ExpectedRange("forward", "forward", '"forward"', 5, True),
    ExpectedRange("backward", "backward", '"backward"', 6, True),
    ExpectedRange("optimizer_step", "optimizer_step", '"optimizer_step"', 7, False),
    ExpectedRange("scheduler_step", "scheduler_step", '"scheduler_step"', 8, False),
    ExpectedRange("zero_grad", "zero_grad", '"zero_grad"', 8, False),
]


class Unreadable(Exception):
    """A file is no trace, or only a part of one; the message says why, as a clause."""


class NoTrace(Exception):
    """The given run, folder or file has no trace; the message says why, as a sentence."""


@dataclass(frozen=True)
class Range:
    """A named interval on one thread, in microseconds."""

    name: str
    thread: object
    start: float
    end: float


def main(arguments: Sequence[str]) -> int:
    """Check every given trace; print one line per finding."""
    if not arguments:
        print("say which run to check, for example: check_ranges.py last")
        return 2
    return max(check_argument(argument) for argument in arguments)


def check_argument(argument: str) -> int:
    path = Path(argument)
    try:
        if path.is_file():
            return check_trace(path)
        run: dict[str, Any] = {"path": argument} if path.is_dir() else _status(argument)
        wrong = wrong_calls(Path(run["path"]))
        print(*(f"calls: WRONG   {sentence}\n" for sentence in wrong), sep="", end="")
        return max(int(bool(wrong)), *(check_trace(trace) for trace in find_traces(argument, run)))
    except NoTrace as why:
        print(why)
        return 2


def wrong_calls(folder: Path) -> list[str]:
    """What the training said of the script's calls when it ended: a sentence for each that is missing or wrong."""
    sentences: dict[str, None] = {}
    for file in sorted(folder.glob("metrics/rank*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a line that is cut
                if line.startswith('{"event": "observed"'):
                    sentences.update(dict.fromkeys(json.loads(line)["notes"]))
    return list(sentences)


def find_traces(name: str, run: dict[str, Any]) -> list[Path]:
    """All traces of a run. name: what it was called by. Raises NoTrace: it has none."""
    folder = Path(run["path"])
    traces = sorted(found for pattern in TRACES for found in folder.rglob(pattern) if found.name[0] != ".")
    if not traces:
        raise NoTrace(f"{name} {_why_no_trace(name, folder, run)}")
    return traces


def _status(name: str) -> dict[str, Any]:
    """The harness's status of a run, by every name that the harness knows, such as `last`. Raises NoTrace: the harness
    knows no run of that name."""
    argv = [*HARNESS, "status", name, "--json"]
    status = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(status.stdout))
    except ValueError:
        errors = status.stderr.strip().splitlines() or [f"{COMMAND} printed nothing"]
        raise NoTrace(f"{name}: no such file or folder, and {errors[-1]}") from None


def _why_no_trace(name: str, folder: Path, run: dict[str, Any]) -> str:
    state = run.get("state", "completed")
    if state in ("queued", "running"):
        return f"is {state}: its trace comes when it ends"
    if state != "completed":
        return f"is {state} and has no trace: `{COMMAND} logs {name}` shows its output"
    if any(folder.rglob("*.nsys-rep")):
        return f"has reports of nsys and no .sqlite: `{COMMAND} report {name}` exports them"
    if run.get("missing") == []:
        return "has no trace because it ran without a profiler: run it again without --no-profile"
    return f"has no trace: {NO_START} ({folder})"


def check_trace(trace: Path) -> int:
    """Print every finding of one trace. Returns 0 when all is right, 1 when not, 2 when it cannot be read."""
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

    def matching(pattern: str) -> list[Range]:
        return [each for each in ranges if re.fullmatch(pattern, each.name)]

    steps = matching(STEP.pattern)
    return [_judge(expected, matching(expected.pattern), steps) for expected in EXPECTED]


def _judge(expected: ExpectedRange, host_ranges: Sequence[Range], step_ranges: Sequence[Range]) -> tuple[bool, str]:
    name = expected.label
    outside = [r for r in host_ranges if not any(_inside(r, step) for step in step_ranges)]
    if not host_ranges:
        return False, f"{name}: not in the trace: {expected.advice}"
    if expected.every_step and len(host_ranges) < len(step_ranges):
        return False, f"{name}: {len(host_ranges)} times in {len(step_ranges)} steps: {expected.advice}"
    if step_ranges and not all(_cut_off(r, step_ranges) for r in outside):
        return False, f"{name}: {len(outside)} of {len(host_ranges)} lie outside every {STEP.label}"
    return True, f"{name}: {len(host_ranges)} times"


def _cut_off(range: Range, ranges: Sequence[Range]) -> bool:
    """True for a part of a step in which recording began or ended: the step's own range is not in the trace."""
    own = [step for step in ranges if step.thread == range.thread]
    return all(range.end <= step.start for step in own) or all(range.start >= step.end for step in own)


def _inside(inner: Range, outer: Range) -> bool:
    if inner.thread != outer.thread:
        return False
    slack = 0.001  # microseconds as floats have a rounding error of about a nanosecond
    return outer.start <= inner.start + slack and inner.end <= outer.end + slack


def read_ranges(trace: Path) -> list[Range]:
    """The ranges of the program in a trace, as the harness reads them. Raises Unreadable: the file is no trace,
    or is cut off."""
    with TemporaryDirectory() as folder:
        written = Path(folder) / "trace.json.gz"
        argv = [*HARNESS, "export", "perfetto", str(trace), "--out", str(written), "--json"]
        export = subprocess.run(argv, capture_output=True, text=True, check=False)
        if not written.exists():
            return _nothing_written(trace, export.stderr)
        notes: list[str] = json.loads(export.stdout)["notes"]
        events: list[dict[str, Any]] = json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    for damage in (note for note in notes if DAMAGE.search(note)):
        raise Unreadable(f"damaged or cut short ({damage})")
    ranges = (event for event in events if event.get("cat") == "range")
    return [Range(e["name"], (e["pid"], e["tid"]), e["ts"], e["ts"] + e["dur"]) for e in ranges]


def _nothing_written(trace: Path, errors: str) -> list[Range]:
    """No ranges, if the trace holds nothing at all. Raises Unreadable: the harness cannot read it."""
    said = (errors.strip().splitlines() or [f"{COMMAND} printed nothing"])[-1]
    if NOTHING in said:
        return []
    raise Unreadable(said.partition(f"{trace}: ")[2] or said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
