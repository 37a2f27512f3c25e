"""nsys reports to one Paraver trace with nsys2prv, which runs as a program, guarded against its silent errors.

It reads stale exports, mixes up reports of one name, merges equal process ids of two hosts, calls every node "node1"
and may exit with 0 after a wrong result. So: a folder of its own, unique names, fresh exports, and a checked result.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.common.bounded_read import read_end
from harness.common.errors import RequestError, WorkError, nearest
from harness.common.users import whose
from harness.export.nsys2prv_result import Converted, accept, check_processes
from harness.traces.nsys.newer import too_new

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
_OTHERWISE = (
    "name the image that has both with --container (and --container-command); --engine own needs neither"
)


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


def arguments(names: Sequence[str], types: Sequence[str], out: str, fresh: bool) -> list[str]:
    """nsys2prv's arguments: all reports are merged (without -m it takes only the first), with new exports."""
    merge = ["-m"] if len(names) > 1 else []
    return ["-t", ",".join(types), *merge, *(["--force-sqlite"] if fresh else []), *names, out]


def convert(
    reports: Sequence[Path],
    out: Path,
    tool: Tool | None = None,
    types: Sequence[str] = TYPES,
    image: tuple[str, Path] | None = None,
) -> Converted:
    """Merge nsys reports (.nsys-rep) or exports (.sqlite) into `out`.prv, .pcf, .row.

    `image`: container command and image that hold nsys2prv and nsys.

    Raises:
        RequestError: the request is wrong.
        WorkError: a step wrote no result or a wrong one; `out` is not touched, and `out`.nsys2prv.log has the output.
    """
    check_types(types)
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
            log = _run(tool, arguments(names, types, "trace", fresh), folder, out)
        except WorkError:
            check_processes(folder, names)  # its own exports may show now why it failed
            raise
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
        raise WorkError(
            f"nsys2prv cannot use nsys {version[0]}.{version[1]}: it needs 2023 or later; {_OTHERWISE}"
        )
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
        raise WorkError(
            f"nsys2prv failed (exit {done.returncode}) while {step_of(done.stdout)}: {last} (see {log})"
        )
    return log


def step_of(printed: str) -> str:
    """What nsys2prv was doing, by the last step that it announced."""
    found = [(printed.rfind(sign), doing) for sign, doing in _STEPS if sign in printed]
    return max(found)[1] if found else "starting"
