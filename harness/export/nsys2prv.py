"""nsys reports to one Paraver trace with nsys2prv, which runs as a program, guarded against its silent errors.

It reads stale exports, mixes up reports of one name, merges equal process ids of two hosts, calls every node "node1"
and may exit with 0 after a wrong result. So: a folder of its own, unique names, fresh exports, and a checked result.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from harness.common.bounded_read import read_end
from harness.common.errors import RequestError, WorkError, nearest
from harness.common.users import whose
from harness.export.paraver import PrvContents, check_paraver
from harness.traces.nsys.export import too_new

PARAVER, PERFETTO, AS_GIVEN = (".prv", ".pcf", ".row", ".prv.gz"), (".perfetto.gz",), ("",)
_NAME = "trace"
Suffixes = tuple[str, ...]  # of the files that one export writes beside each other


def prefix_for(out: Path | None, folder: Path, suffixes: Suffixes) -> tuple[Path, list[str]]:
    """Where to write, without a suffix, and notes: `out`, else the first free of trace, trace-2, … in the folder."""
    prefix = out or _free(folder / _NAME, suffixes)
    if out or prefix.name == _NAME:
        return prefix, []
    return prefix, [f"{_NAME}{suffixes[0]} existed already and is kept; --out PREFIX sets another name"]


def refuse_taken(out: Path, suffixes: Suffixes) -> None:
    """Raises RequestError: `--out` names a folder, or a file that is already there."""
    if out.is_dir():
        raise RequestError(f"--out {out}: is a folder; give a new name, as in --out {out / _NAME}")
    if taken := _taken(out, suffixes):
        raise RequestError(
            f"--out {out}: {taken} exists already and is never overwritten; give another name, for example "
            f"{_free_like(out, suffixes)}"
        )


def _taken(prefix: Path, suffixes: Suffixes) -> Path | None:
    paths = [prefix.with_name(prefix.name + suffix) for suffix in suffixes]
    return next((path for path in paths if path.exists() or path.is_symlink()), None)


def _free(prefix: Path, suffixes: Suffixes) -> Path:
    numbered = (prefix.with_name(f"{prefix.name}-{number}") for number in count(2))
    return next(path for path in chain([prefix], numbered) if not _taken(path, suffixes))


def _free_like(out: Path, suffixes: Suffixes) -> Path:
    """A free name like `out`; the ending of a whole file name stays."""
    ending = "" if any(suffixes) else "".join(out.suffixes)
    free = _free(out.with_name(out.name.removesuffix(ending)), tuple(ending + suffix for suffix in suffixes))
    return free.with_name(free.name + ending)


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
    for suffix in (".row", ".pcf", ".prv"):  # the .prv last: viewers open it
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
    """The processes of each report, by its export in `folder`; None if there is no export yet. Raises WorkError: no
    report has CUDA calls, which nsys2prv needs; or two reports share a process id, of which nsys2prv would make one
    task."""
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
    for node, number in zip(node_of_task, contents.threads, strict=True):
        names = threads[first : first + number]
        devices[node] |= {int(m[1]) for name in names if (m := re.match(r"CUDA-D(\d+)\.", name))}
        first += number
    return devices


def _check_against(known: Sequence[_Processes | None], contents: PrvContents, devices: Mapping[str, set[int]]) -> None:
    """Raises WorkError: the trace lacks a GPU on which a report has kernels, or is shorter than the kernels."""
    for each in filter(None, known):
        if missing := sorted(each.gpus - devices.get(each.host, set())):
            raise WorkError(f"nsys2prv ended without an error but its trace lacks GPU {missing[0]} of {each.host}")
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


PROGRAM = "nsys2prv"
TYPES = ("nvtx_pushpop_trace", "nccl", "cuda_api_trace", "gpu_metrics", "cuda_gpu_trace")
KNOWN_TYPES = (*TYPES, "nvtx_startend_trace", "mpi_event_trace", "openacc", "graphs")
INCLUDE_JSON_SINCE = (2024, 6)
_MOST_LOG_BYTES = 16 << 20
OLDEST_NSYS = (2023, 1)  # older ones name tables and `nsys stats` reports differently
# What nsys2prv prints, and what it is doing then.
_STEPS = (
    ("Exporting SQLite", "exporting the reports to sqlite"),
    ("Processing stats", "running nsys stats"),
    ("Importing datasets", "reading the exports"),
    ("object model", "building the rows"),
    ("Collecting event names", "collecting names"),
    ("Writing pcf", "writing the .pcf"),
    ("Reconstructing timeline", "writing the records"),
)
_SORTER = "bin/sort-trace.awk.sh"  # of Paraver's folder
_OTHERWISE = "name the image that has both with --container (and --container-command); --engine own needs neither"


@dataclass(frozen=True)
class Tool:
    """How nsys2prv is started: `prefix` + nsys2prv, e.g. a container's exec."""

    prefix: tuple[str, ...] = ()
    program: str = PROGRAM
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def argv(self, *arguments: str) -> list[str]:
        """The whole command line."""
        return [*self.prefix, self.program, *arguments]

    def nsys_argv(self, *arguments: str) -> list[str]:
        """The same for the nsys that nsys2prv would use."""
        home = self.environ.get("NSYS_HOME")
        return [*self.prefix, str(Path(home) / "bin" / "nsys") if home else "nsys", *arguments]

    def nsys_version(self) -> tuple[int, int]:
        """Year and number of that nsys. Raises WorkError: it cannot be started, or prints no version."""
        argv = self.nsys_argv("--version")
        try:
            done = subprocess.run(argv, capture_output=True, text=True, env=self.environ, check=False)
        except OSError as error:
            raise WorkError(
                f"nsys2prv needs nsys to read reports, and {argv[0] if self.prefix else argv[-2]} cannot be started: "
                f"{error.strerror}; {_OTHERWISE}"
            ) from error
        match = re.search(r"(20\d\d)\.(\d+)", done.stdout)
        if not match:
            raise WorkError(f"{' '.join(argv)} prints no version: {done.stdout.strip()[:80]!r}")
        return int(match[1]), int(match[2])


def installed(environ: Mapping[str, str] = os.environ) -> str | None:
    """Path of an nsys2prv in PATH, or None."""
    return shutil.which(PROGRAM, path=environ.get("PATH"))


def container(command: str, image: Path, folder: Path) -> tuple[str, ...]:
    """Prefix that runs a program of a Singularity or Apptainer image in `folder`, the only folder that it sees."""
    return (command, "exec", "--bind", f"{folder}:{folder}", "--pwd", str(folder), str(image))


def check_types(types: Sequence[str]) -> None:
    """Raises RequestError: nsys2prv would ignore a name, or the name that it always needs is missing."""
    for name in types:
        if name not in KNOWN_TYPES:
            near = nearest(name, KNOWN_TYPES)
            hint = f"; did you mean {near}?" if near else f"; it knows {', '.join(KNOWN_TYPES)}"
            raise RequestError(f"--types: nsys2prv would ignore {name!r}{hint}")
    if "cuda_api_trace" not in types:
        raise RequestError("--types: nsys2prv needs cuda_api_trace among them")


@dataclass(frozen=True)
class Wanted:
    """What nsys2prv shall do. within: a range's name: CUDA calls outside the first one are left out; kernels stay."""

    types: Sequence[str] = TYPES
    within: str | None = None
    sort: bool = False

    def check(self, environ: Mapping[str, str], contained: bool) -> None:
        """Raises RequestError: it could not be done. contained: in a container, whose files are not known here."""
        check_types(self.types)
        home = environ.get("PARAVER_HOME")
        if self.sort and not (home and (contained or (Path(home) / _SORTER).is_file())):
            what = f"{home} has no {_SORTER}" if home else "PARAVER_HOME is not set"
            raise RequestError(
                f"--sort: nsys2prv sorts with Paraver's {_SORTER}, and {what}: type export PARAVER_HOME=FOLDER with "
                "the folder of Paraver, or leave --sort out, because Paraver also opens traces that are not sorted"
            )


def arguments(names: Sequence[str], wanted: Wanted, out: str, fresh: bool) -> list[str]:
    """nsys2prv's arguments: all reports are merged (without -m it takes only the first), with new exports."""
    switches = {"-m": len(names) > 1, "--force-sqlite": fresh, "--sort": wanted.sort}
    within = [] if wanted.within is None else [f"--filter-nvtx={wanted.within}"]
    return ["-t", ",".join(wanted.types), *(flag for flag, on in switches.items() if on), *within, *names, out]


def convert(
    reports: Sequence[Path],
    out: Path,
    tool: Tool | None = None,
    wanted: Wanted | None = None,
    image: tuple[str, Path] | None = None,
) -> Converted:
    """Merge nsys reports (.nsys-rep) or exports (.sqlite) into `out`.prv, .pcf, .row. `image`: container command and
    image that hold nsys2prv and nsys. Raises RequestError: the request is wrong. WorkError: a step wrote no result or a
    wrong one; `out` is not touched, and `out`.nsys2prv.log has the output."""
    wanted = wanted or Wanted()
    wanted.check(tool.environ if tool else os.environ, contained=image is not None)
    _check_reports(reports)
    try:
        folder = Path(tempfile.mkdtemp(prefix=".nsys2prv-", dir=out.parent))
    except OSError as error:
        raise WorkError(
            f"{out.parent} cannot be written: {error.strerror}{whose(out)}; --out PREFIX writes elsewhere"
        ) from error
    try:
        tool = tool or Tool(prefix=container(*image, folder) if image else ())
        names = _stage(reports, folder)
        fresh = _export_with_old_nsys(tool, dict(zip(names, reports, strict=True)), folder)
        check_processes(folder, names)
        try:
            log = _run(tool, arguments(names, wanted, "trace", fresh), folder, out)
        except WorkError:
            check_processes(folder, names)  # its own exports may show now why it failed
            raise
        for made in folder.glob("trace.sorted.*"):
            made.replace(folder / f"trace{made.suffix}")
        done = accept(folder, names, out, read_end(log, _MOST_LOG_BYTES).decode("utf-8", "replace"))
        log.unlink()
        return done
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_reports(reports: Sequence[Path]) -> None:
    for report in reports:
        if not report.is_file():
            raise RequestError(f"{report} does not exist")
        if report.stat().st_size == 0:
            raise WorkError(f"{report} is empty: nsys did not finish writing it")


def _stage(reports: Sequence[Path], folder: Path) -> list[str]:
    """Put each input into `folder` as node<K>.nsys-rep or node<K>.sqlite; returns the names to pass, in that order.

    An export beside its report is taken only if it is not older. nsys2prv needs no report where it has the export.
    """
    for index, report in enumerate(reports):
        export = report.with_suffix(".sqlite")
        if report.suffix != ".sqlite":
            _link(report, folder / f"node{index}{report.suffix}")
        if export.is_file() and export.stat().st_mtime_ns >= report.stat().st_mtime_ns:
            _link(export, folder / f"node{index}.sqlite")
    return [f"node{index}.nsys-rep" for index in range(len(reports))]


def _link(source: Path, target: Path) -> None:
    """A hard link, which a container sees with the folder; a copy if the file system allows no link."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy(source, target)


def _export_with_old_nsys(tool: Tool, names: Mapping[str, Path], folder: Path) -> bool:
    """Whether nsys2prv shall export the reports. An nsys before 2024.6 lacks its option: then export them here."""
    missing = [name for name in names if not (folder / name).with_suffix(".sqlite").exists()]
    if not missing:
        return False
    version = tool.nsys_version()
    if version < OLDEST_NSYS:
        raise WorkError(f"nsys2prv cannot use nsys {version[0]}.{version[1]}: it needs 2023 or later; {_OTHERWISE}")
    if version >= INCLUDE_JSON_SINCE:
        return True
    for name in missing:
        export = Path(name).with_suffix(".sqlite").name
        argv = tool.nsys_argv("export", "-t", "sqlite", "--force-overwrite=true", "-o", export, name)
        done = subprocess.run(argv, cwd=folder, env=tool.environ, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not (folder / export).is_file():
            said = done.stdout + done.stderr
            if newer := too_new(names[name], said, tool.nsys_argv(), tool.environ):
                raise WorkError(f"{names[name]} {newer}")
            printed = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
            raise WorkError(f"nsys could not export {names[name]} to sqlite: {printed[-1]}")
    return False


def _run(tool: Tool, given: Sequence[str], folder: Path, out: Path) -> Path:
    """Run nsys2prv in `folder`; returns the file with its output. Raises WorkError: it failed; names the step."""
    argv = tool.argv(*given)
    log = out.with_name(out.name + ".nsys2prv.log")
    try:
        done = subprocess.run(
            argv, cwd=folder, env=tool.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, errors="replace", check=False,
        )  # fmt: skip
    except OSError as error:
        raise WorkError(f"{argv[0]} cannot be started: {error.strerror}; {_OTHERWISE}") from error
    log.write_text(" ".join(argv) + "\n" + done.stdout, encoding="utf-8")
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["it printed nothing"])[-1].strip()
        if "EmptyDataError" in last and any(word.startswith("--filter-nvtx=") for word in given):
            last = "no CUDA call lies in a range of that name (--filter-nvtx)"
        raise WorkError(f"nsys2prv failed (exit {done.returncode}) while {step_of(done.stdout)}: {last} (see {log})")
    return log


def step_of(printed: str) -> str:
    """What nsys2prv was doing, by the last step that it announced."""
    found = [(printed.rfind(sign), doing) for sign, doing in _STEPS if sign in printed]
    return max(found)[1] if found else "starting"
