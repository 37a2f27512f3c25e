"""Stands in for nsys2prv in tests: takes its command line, writes a trace in its form, or fails in one of its ways.

FAKE: ok | traceback | no-range | nothing | no-row. FAKE_VERSION: of which it prints the help. It writes what it was
called with to the file that FAKE_CALLS names.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "nsys2prv"
PCF = "EVENT_TYPE\n0 63000006 CUDA kernel\nVALUES\n0 End\n1 gemm\n"


def main() -> int:
    argv, how = sys.argv[1:], os.environ.get("FAKE", "ok")
    if argv == ["--help"]:
        print((DATA / os.environ.get("FAKE_VERSION", "0.5.8") / "help.txt").read_text())
        return 0
    staged = sorted(path.name for path in Path().iterdir())
    calls = {"argv": argv, "cwd": str(Path.cwd()), "staged": staged}
    Path(os.environ["FAKE_CALLS"]).write_text(json.dumps(calls))
    print("nsys2prv v0.5.8\nProcessing stats for x\nImporting datasets...")
    failures = {
        "traceback": "KeyError: 'CUPTI_ACTIVITY_KIND_KERNEL'",
        "no-range": "pandas.errors.EmptyDataError: No columns to parse from file",
    }
    if how in failures:
        print(f"Traceback (most recent call last):\n{failures[how]}")
        return 1
    if how == "nothing":
        return 0
    out = argv[-1]
    Path(f"{out}.pcf").write_text(PCF)
    Path(f"{out}.row").write_text("" if how == "no-row" else "LEVEL NODE SIZE 1\nnode1\n")
    Path(f"{out}.prv").write_text(f"#Paraver (01/02/2026 at 10:11):3000_ns:0:1:1:(2:1)\nof {' '.join(staged)}\n")
    return 0


def make_export(path: Path, pid: int) -> Path:
    """An export with a range of one process, and without CUDA calls."""
    path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE NVTX_EVENTS (globalTid INTEGER)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?)", (pid << 24 | pid,))
    return path


if __name__ == "__main__":
    sys.exit(main())
