"""A training that computes nothing: as the real one it writes metrics and a trace, and stops when it is asked to.

The faults' own scripts import it: `hold` and `at` put something at one of its MOMENTS. Standard library only, so that
sixty of its runs cost what one training costs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from harness.common.run_folder.metrics_lines import EndLine, RankProcess, StartLine, StepLine
from harness.common.run_folder.profile_window import ProfileWindow
from harness.common.run_folder.run_files import METRICS

__all__ = ["at", "hold", "main"]
MOMENTS = ("import", "start", "window", "trace", "end")
MARKS = "FAULTS_MARKS"  # the folder in which each rank says how far it is
STEP_S = 0.1
SKIPPED = 2  # steps before those that its trace has

_placed: dict[str, Callable[[int], None]] = {}
_asked_to_stop = False


def at(moment: str, action: Callable[[int], None]) -> None:
    """Call `action` with the rank when it reaches the moment."""
    assert moment in MOMENTS, moment
    _placed[moment] = action


def hold(moment: str) -> None:
    """Stand still at the moment, until killed."""
    at(moment, lambda _rank: time.sleep(3600))  # the fault ends it


def main() -> int:
    """Train for --active steps; the exit status is the real training's."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    _reached("import", rank)
    signal.signal(signal.SIGTERM, _stop)
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--active", type=int, required=True)
    asked, _ = parser.parse_known_args()
    _reached("start", rank)
    steps = asked.active + SKIPPED
    path = METRICS.path(asked.run_dir, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", buffering=1) as lines:
        print(json.dumps(_start_line(rank, world, steps)), file=lines)
        times = []
        for step in range(steps):
            if _asked_to_stop:
                break
            times.append(time.time_ns())
            time.sleep(STEP_S)  # the work of a step
            print(json.dumps(_step_line(step, times[-1])), file=lines)
            if step == SKIPPED:
                _reached("window", rank)
        _write_trace(asked.run_dir, rank, world, times[SKIPPED:])
        ending = ("stopped", "SIGTERM") if _asked_to_stop else ("completed", None)
        print(json.dumps({"event": "end", **asdict(EndLine(rank, *ending, len(times)))}), file=lines)
    _reached("end", rank)
    return 143 if _asked_to_stop else 0


def _stop(_number: int, _frame: FrameType | None) -> None:
    global _asked_to_stop  # noqa: PLW0603  # a handler has no other place
    _asked_to_stop = True


def _reached(moment: str, rank: int) -> None:
    if folder := os.environ.get(MARKS):
        mark = Path(folder, f"{os.environ['RUN_DIR'].rpartition('/')[2]}.rank{rank}.{moment}")
        mark.with_suffix(".new").write_text(str(os.getpid()), encoding="ascii")
        mark.with_suffix(".new").rename(mark)
    if moment in _placed:
        _placed[moment](rank)


def _start_line(rank: int, world: int, steps: int) -> dict[str, object]:
    window = ProfileWindow(SKIPPED, 0, 0, steps - SKIPPED)
    start = StartLine(
        rank, world, 0, "gloo", "cpu", "tiny-llama", 1000, "random", "float32", 64, 1, 1, None, None, window, None
    )
    process = RankProcess(0, platform.node(), os.getpid(), "cpu", "cpu", "process", None, None)
    return {"event": "start", **asdict(start), **asdict(process)}


def _step_line(step: int, began_ns: int) -> dict[str, object]:
    whole = time.time_ns() - began_ns
    phase = "skip" if step < SKIPPED else "active"
    line = StepLine(step, phase, began_ns, whole, 0, whole, 0, 0, 0, 1.0, 0.1, 64, 1, True, 1 << 20)
    return {"event": "step", **asdict(line)}


def _write_trace(run: Path, rank: int, world: int, begins_ns: list[int]) -> None:
    """As the real capture: under another name until it is whole."""
    whole = run / "torch" / f"rank{rank}.json.gz"
    whole.parent.mkdir(parents=True, exist_ok=True)
    unfinished = whole.with_name(f".unfinished-{whole.name}")
    text = json.dumps(_trace(rank, world, begins_ns))
    with gzip.open(unfinished, "wt", encoding="utf-8") as file:
        file.write(text[: len(text) // 2])
        file.flush()
        _reached("trace", rank)
        file.write(text[len(text) // 2 :])
    unfinished.replace(whole)


def _trace(rank: int, world: int, begins_ns: list[int]) -> dict[str, object]:
    """The steps as ranges of the main thread, each with one operator in it."""
    events = []
    base = begins_ns[0] if begins_ns else time.time_ns()
    for number, began_ns in enumerate(begins_ns):
        start_us = (began_ns - base) / 1e3
        place = {"ph": "X", "pid": os.getpid(), "tid": os.getpid()}
        for name, category, late_us, long_us in (
            (f"ProfilerStep#{number + SKIPPED}", "user_annotation", 0.0, STEP_S * 1e6),
            ("aten::mm", "cpu_op", 1000.0, STEP_S * 1e6 - 2000),
        ):
            times = {"ts": start_us + late_us, "dur": long_us}
            events.append({**place, "cat": category, "name": name, **times, "args": {}})
    return {
        "schemaVersion": 1,
        "deviceProperties": [],
        "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world},
        "baseTimeNanoseconds": base,
        "traceEvents": events,
        "traceName": f"rank{rank}.json",
    }


if __name__ == "__main__":
    sys.exit(main())
