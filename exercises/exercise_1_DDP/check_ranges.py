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
DAMAGE = re.compile("damaged|in the middle")  # in what the harness notes about a trace
NOTHING = "the traces hold no events and no ranges"  # the harness has nothing to write
NO_TRACE = "there is no trace"
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
    """Print every finding of a run or trace. Returns 0 if all is right, 1 if not, 2 if there is no trace to read."""
    wrong = wrong_calls(_folder(argument))
    print(*(f"calls: WRONG   {sentence}\n" for sentence in wrong), sep="", end="")
    try:
        findings = check(read_ranges(argument))
    except Unreadable as why:
        print(f"{argument}: {why}")
        return 2
    for right, sentence in findings:
        print(f"{argument}: {'ok     ' if right else 'MISSING'} {sentence}")
    return 1 if wrong or not all(right for right, _ in findings) else 0


def _folder(argument: str) -> Path:
    """The folder of a run, by every name that the harness knows, such as `last`; else the path itself."""
    if not Path(argument).exists():
        argv = [*HARNESS, "status", argument, "--json"]
        with suppress(ValueError):  # it knows no such run
            return Path(json.loads(subprocess.run(argv, capture_output=True, text=True, check=False).stdout)["path"])
    return Path(argument)


def wrong_calls(folder: Path) -> list[str]:
    """What the training said of the script's calls when it ended: a sentence for each that is missing or wrong."""
    sentences: dict[str, None] = {}
    for file in sorted(folder.glob("metrics/rank*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # a line that is cut
                if line.startswith('{"event": "observed"'):
                    sentences.update(dict.fromkeys(json.loads(line)["notes"]))
    return list(sentences)


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


def read_ranges(argument: str) -> list[Range]:
    """The ranges of the program in the traces, as the harness reads them. Raises Unreadable: there is none, or one is
    cut off."""
    with TemporaryDirectory() as folder:
        written = Path(folder) / "trace.json.gz"
        argv = [*HARNESS, "export", "perfetto", argument, "--out", str(written), "--json"]
        export = subprocess.run(argv, capture_output=True, text=True, check=False)
        if not written.exists():
            return _nothing_written(argument, export.stderr)
        notes: list[str] = json.loads(export.stdout)["notes"]
        events: list[dict[str, Any]] = json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    for damage in (note for note in notes if DAMAGE.search(note)):
        raise Unreadable(f"damaged or cut short ({damage})")
    ranges = (event for event in events if event.get("cat") == "range")
    return [Range(e["name"], (e["pid"], e["tid"]), e["ts"], e["ts"] + e["dur"]) for e in ranges]


def _nothing_written(argument: str, errors: str) -> list[Range]:
    """No ranges, if the traces hold nothing at all. Raises Unreadable: there is none that the harness can read."""
    said = (errors.strip().splitlines() or [f"{COMMAND} printed nothing"])[-1]
    if NOTHING in said:
        return []
    if NO_TRACE in said:
        raise Unreadable(f"has no trace: {NO_START}, and `{COMMAND} status` says what else may be the reason")
    raise Unreadable(said.partition(f"{argument}: ")[2] or said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
