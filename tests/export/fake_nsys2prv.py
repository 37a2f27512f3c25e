"""Stands in for nsys2prv in tests: takes its command line, writes a trace in its form, or fails in one of its ways.

FAKE: ok | traceback | no-calls | no-range | nothing | no-events | no-row | garbage. It writes what it was called
with to calls.json, and makes an export for each report that has none, as the real one does with nsys.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path

PCF = "EVENT_TYPE\n0 63000006 CUDA kernel\nVALUES\n0 End\n1 gemm\n"


def main() -> int:
    argv = sys.argv[1:]
    how = os.environ.get("FAKE", "ok")
    options = {"-t": argv[argv.index("-t") + 1], "-m": "-m" in argv, "--force-sqlite": "--force-sqlite" in argv}
    names = [each for each in argv if each.endswith(".nsys-rep")]
    staged = sorted(path.name for path in Path().iterdir())
    further = [each for each in argv if each.startswith(("--filter-nvtx", "--sort"))]
    calls = {
        "options": options,
        "further": further,
        "names": names,
        "out": argv[-1],
        "cwd": str(Path.cwd()),
        "staged": staged,
    }
    Path(os.environ["FAKE_CALLS"]).write_text(json.dumps(calls))
    print("nsys2prv v0.5.8\nExporting SQLite databse for x\nProcessing stats for x")
    if how == "no-calls":
        for name in names:
            pid, _, host = Path(name).read_text().partition("@")
            make_export(Path(name).with_suffix(".sqlite"), int(pid), host, calls=False)
    if how in ("traceback", "no-calls"):
        print("Importing datasets...\nTraceback (most recent call last):\nKeyError: 'CUPTI_ACTIVITY_KIND_KERNEL'")
        return 1
    if how == "no-range":
        print("Importing datasets...\npandas.errors.EmptyDataError: No columns to parse from file")
        return 1
    if how == "nothing":
        return 0
    pids = sorted(pid for name in names for pid in exported(Path(name).with_suffix(".sqlite")))
    events = [
        "2:0:1:{0}:2:10:63000006:1:9200:5\n2:0:1:{0}:2:4000:63000006:0:9200:0\n".format(t + 1) for t in range(len(pids))
    ]
    header = f"#Paraver (01/02/2026 at 10:11):3000_ns:0:1:{len(pids)}:({','.join('2:1' for _ in pids)})\n"
    out = Path(argv[-1] + (".sorted" if "--sort" in argv else ""))
    out.with_name(out.name + ".pcf").write_text(PCF)
    rows = [row for task in range(len(pids)) for row in (f"THREAD 1.{task + 1}.1", f"CUDA-D{task}.S7")]
    if how != "no-row":
        names_of = "".join(row + "\n" for row in rows)
        out.with_name(out.name + ".row").write_text(
            f"LEVEL NODE SIZE 1\nnode1\n\nLEVEL THREAD SIZE {len(rows)}\n{names_of}\n"
        )
    body = {"no-events": "", "garbage": "hello\n"}.get(how, "".join(events))
    out.with_name(out.name + ".prv").write_text(header + body)
    return 0


def exported(export: Path) -> list[int]:
    """The processes of an export; without a table of processes, one from the report's text "pid@host"."""
    if not export.exists():
        pid, _, host = export.with_suffix(".nsys-rep").read_text().partition("@")
        make_export(export, int(pid), host)
    with sqlite3.connect(export) as database:
        return [pid for (pid,) in database.execute("SELECT DISTINCT (globalTid >> 24) & 0xFFFFFF FROM NVTX_EVENTS")]


def make_export(
    path: Path, pid: int, host: str, kernels: list[tuple[int, int, int]] | None = None, *, calls: bool = True
) -> None:
    """The tables that name a report's host and processes, `kernels` of (device, start, end), and a CUDA call."""
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        database.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', ?)", (host,))
        database.execute("CREATE TABLE NVTX_EVENTS (globalTid INTEGER)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?)", (pid << 24 | pid,))
        if calls:
            database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (globalTid INTEGER)")
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?)", (pid << 24 | pid,))
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (deviceId INTEGER, start INTEGER, end INTEGER)")
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", kernels or [])


if __name__ == "__main__":
    sys.exit(main())
