"""Check that nsys2prv wrote the requested trace, and add the node names that it does not write."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from harness.common.errors import WorkError
from harness.export.names import PARAVER
from harness.export.prv_check import PrvContents, check_paraver


@dataclass(frozen=True)
class Converted:
    """The trace, and notes on what was corrected or is uncertain."""

    prv: Path
    contents: PrvContents
    notes: list[str]


def accept(folder: Path, names: Sequence[str], out: Path, printed: str) -> Converted:
    """Check the result, write the real node names into it, and move it to its place."""
    contents = check_result(folder / "trace.prv")
    known = check_processes(folder, names)
    notes = [] if all(known) else ["an export could not be read: so equal process ids were not checked"]
    nodes = _nodes_of_tasks(known, len(contents.threads))
    if nodes is None:
        notes.append("the tasks' nodes are not known: every task is shown on node 1")
    else:
        devices = _devices(contents, nodes)
        _check_against(known, contents, devices)
        _rename_nodes(folder / "trace.prv", contents, nodes, devices)
        contents = check_result(folder / "trace.prv")
    if "Only one unique device ID" in printed:
        notes.append("nsys2prv saw one device id for several processes: counters may be on the wrong row")
    for suffix in reversed(PARAVER):  # the .prv last: viewers open it
        (folder / f"trace{suffix}").replace(out.with_name(out.name + suffix))
    return Converted(out.with_name(out.name + ".prv"), contents, notes)


def check_result(prv: Path) -> PrvContents:
    """The contents of the trace. Raises WorkError: there is no usable trace, though the exit status was 0."""
    try:
        return check_paraver(prv)
    except WorkError as error:
        raise WorkError(f"nsys2prv ended without an error but left no usable trace: {error}") from error


@dataclass(frozen=True)
class _Processes:
    """One export: its host, its processes with API calls or ranges (nsys2prv's tasks), and its GPUs with kernels."""

    host: str
    has_calls: bool  # of CUDA
    pids: frozenset[int]
    gpus: frozenset[int]
    kernels_ns: int  # from the first kernel's start to the last one's end


def _processes(export: Path) -> _Processes | None:
    """None if the export cannot be read."""
    try:
        with closing(sqlite3.connect(f"{export.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return _read(database)
    except sqlite3.Error:
        return None


def _read(database: sqlite3.Connection) -> _Processes | None:
    query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname' LIMIT 1"
    host = database.execute(query).fetchone()
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    pids: set[int] = set()
    for table in {"CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"} & tables:
        rows = database.execute(f"SELECT DISTINCT (globalTid >> 24) & 0xFFFFFF FROM {table}")
        pids |= {pid for (pid,) in rows if pid is not None}
    gpus: list[tuple[int, int, int]] = []
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        query = "SELECT deviceId, MIN(start), MAX(end) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY deviceId"
        gpus = database.execute(query).fetchall()
    lasts = max((end for *_, end in gpus), default=0) - min((start for _, start, _ in gpus), default=0)
    runtime = "SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1"
    calls = "CUPTI_ACTIVITY_KIND_RUNTIME" in tables and database.execute(runtime).fetchone() is not None
    ran_on = frozenset(gpu for gpu, *_ in gpus)
    return _Processes(host[0], calls, frozenset(pids), ran_on, lasts) if host else None


def check_processes(folder: Path, names: Sequence[str]) -> list[_Processes | None]:
    """The processes of each report, by its export in `folder`; None if there is no export yet.

    Raises:
        WorkError: no report has CUDA calls, which nsys2prv needs; or two reports share a process id, of which nsys2prv
            would make one task.
    """
    known = [_processes((folder / name).with_suffix(".sqlite")) for name in names]
    if all(each and not each.has_calls for each in known):
        raise WorkError(
            "nsys2prv needs CUDA calls, and nsys recorded none, as on a machine without a GPU; "
            "the harness's own writer (--engine own) does not need them"
        )
    seen: dict[int, str] = {}
    for each in filter(None, known):
        for pid in sorted(each.pids):
            if pid in seen:
                raise WorkError(
                    f"process {pid} is on {seen[pid]} and on {each.host}: nsys2prv would merge the two into one task; "
                    f"use the harness's own writer (--engine own)"
                )
            seen[pid] = each.host
    return known


def _nodes_of_tasks(known: Sequence[_Processes | None], tasks: int) -> list[str] | None:
    """Host of each task: nsys2prv numbers its tasks by process id. None if the counts differ."""
    host_of = {pid: each.host for each in known if each for pid in each.pids}
    return [host_of[pid] for pid in sorted(host_of)] if len(host_of) == tasks else None


def _devices(contents: PrvContents, node_of_task: Sequence[str]) -> dict[str, set[int]]:
    """The devices that have a row, by node."""
    threads = contents.rows["THREAD"]
    devices: dict[str, set[int]] = {node: set() for node in node_of_task}
    first = 0
    for node, count in zip(node_of_task, contents.threads, strict=True):
        names = threads[first : first + count]
        devices[node] |= {int(m[1]) for name in names if (m := re.match(r"CUDA-D(\d+)\.", name))}
        first += count
    return devices


def _check_against(
    known: Sequence[_Processes | None], contents: PrvContents, devices: Mapping[str, set[int]]
) -> None:
    """Raises WorkError: the trace lacks a GPU on which a report has kernels, or is shorter than the kernels."""
    for each in filter(None, known):
        if missing := sorted(each.gpus - devices.get(each.host, set())):
            raise WorkError(
                f"nsys2prv ended without an error but its trace lacks GPU {missing[0]} of {each.host}"
            )
        if contents.last_ns < each.kernels_ns:
            raise WorkError(
                f"nsys2prv ended without an error but its trace lasts {contents.last_ns / 1e6:.3f} ms: the kernels of "
                f"{each.host} alone take {each.kernels_ns / 1e6:.3f} ms"
            )


def _rename_nodes(
    prv: Path, contents: PrvContents, node_of_task: Sequence[str], devices: Mapping[str, set[int]]
) -> None:
    """Rewrite the nodes and the end in the header, and the node names in the .row. Records stay as they are."""
    nodes = list(devices)
    cpus = ",".join(str(max(1, len(devices[node]))) for node in nodes)
    placed = ",".join(
        f"{count}:{nodes.index(node) + 1}" for count, node in zip(contents.threads, node_of_task, strict=True)
    )
    date = contents.header[: contents.header.index(b")") + 1].decode()
    end = max(contents.end_ns, contents.last_ns)
    header = f"{date}:{end}_ns:{len(nodes)}({cpus}):1:{len(node_of_task)}({placed})"
    draft = prv.with_name("renamed.prv")
    with prv.open("rb") as old, draft.open("wb") as new:
        old.readline()
        new.write(header.encode() + b"\n")
        shutil.copyfileobj(old, new, 1 << 20)
    draft.replace(prv)
    levels = {"NODE": nodes, "THREAD": contents.rows["THREAD"]}
    texts = ("\n".join([f"LEVEL {level} SIZE {len(names)}", *names, ""]) for level, names in levels.items())
    prv.with_suffix(".row").write_text("\n".join(texts), encoding="utf-8")
