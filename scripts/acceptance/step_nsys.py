"""Step 7: the same training under nsys, where there is one: its capture range, NVTX, our reader, nsys2prv."""

from __future__ import annotations

import importlib.util
import shutil

from failures import LackError
from numbers_text import first
from place import TRAINING, Place, has_gpu, require_packages
from results import Result
from runs import WINDOW, Case, Run, harness, launched, sizes
from summary_checks import check_summary

ACTIVE = int(WINDOW[-1])
NAME = "nsys"


def nsys(place: Place, result: Result) -> None:
    """Record with nsys and check what our reader finds in it."""
    if shutil.which("nsys") is None:
        raise LackError("nsys on PATH")
    require_packages(*TRAINING)
    words = ("-e", "1", *sizes(), *WINDOW, "--mixed-precision", "--profiler", "nsys")
    run = launched(place, Case(NAME, words, seconds=90.0))
    reports = sorted((run.path / "nsys").glob("*.nsys-rep"))
    result.check("nsys wrote a report", bool(reports), ", ".join(path.name for path in reports) or "none")
    _window(result, run)
    if has_gpu():
        check_summary(result, NAME, run.summary)
    else:
        result.lacks("kernels", "GPU: without one nsys records ranges alone")
    _paraver(place, result, run)


def _window(result: Result, run: Run) -> None:
    """The capture range holds the profiled steps and nothing else; the ranges are the training's own."""
    ranges = {row["name"].partition("_")[0]: row["instances"] for row in run.summary["ranges"]}
    batches = ranges.get("batch", 0)
    said = f"{batches} batches in it, {ACTIVE} asked for; steps from {run.summary['steps']['source']}"
    result.check("capture range", batches == ACTIVE, said)
    source = first(run.summary["sources"])
    result.seen("reader", f"{source.get('tool')} {source.get('tool_version')}")


def _paraver(place: Place, result: Result, run: Run) -> None:
    if importlib.util.find_spec("nsys2prv") is None and shutil.which("nsys2prv") is None:
        result.lacks("nsys2prv", "the package nsys2prv")
        return
    out = place.work / "paraver" / "trace"
    out.parent.mkdir(parents=True, exist_ok=True)
    harness(place, ["export", "paraver", run.path, "--engine", "nsys2prv", "--out", out], place.seconds_for(60))
    sizes_of = {path.suffix: path.stat().st_size for path in out.parent.glob("trace*")}
    said = ", ".join(f"{suffix} {size} bytes" for suffix, size in sorted(sizes_of.items()))
    result.check("nsys2prv", {".prv", ".pcf", ".row"} <= set(sizes_of), said or "nothing was written")
