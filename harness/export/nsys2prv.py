"""nsys reports to one Paraver trace with BSC's nsys2prv, which runs as a program in a folder of its own.

Beside the reports it would use exports of earlier reports, and of two reports with one name only the first.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.common.errors import RequestError, WorkError, nearest_or_list
from harness.common.system.users import whose
from harness.traces.nsys.export import exported

PROGRAM = "nsys2prv"
TYPES = ("nvtx_pushpop_trace", "nvtx", "nccl", "cuda_api_trace", "gpu_metrics", "kernels")  # 0.6 has other names
FILTER = "--filter-nvtx"
_TRACE = "trace"
_OTHERWISE = "name an image with it and nsys by --container (and --container-command); --engine own needs neither"


@dataclass(frozen=True)
class Options:
    """The options of nsys2prv. types: none: those of `TYPES` that it has. within: a range's name: CUDA calls outside
    the first one are left out; kernels stay. image: the command and the image of a container that holds nsys2prv and
    nsys."""

    types: Sequence[str] = ()
    within: str | None = None
    image: tuple[str, Path] | None = None

    def types_for(self, help_text: str) -> Sequence[str]:
        """The types for the nsys2prv that prints this help. Raises RequestError: it has not what was asked."""
        found = re.search(r"translate:\s*\[([\w,\s]+)\]", help_text)
        known = re.findall(r"\w+", found[1]) if found else TYPES
        for name in self.types:
            if name not in known:
                hint = nearest_or_list(name, known, f"it has {', '.join(known)}")
                raise RequestError(f"--types: the nsys2prv here has no {name!r}{hint}")
        if self.types and "cuda_api_trace" not in self.types and ("nccl" in self.types or "kernels" not in known):
            raise RequestError("--types: the nsys2prv here needs cuda_api_trace among them")
        if self.within is not None and FILTER not in help_text:
            raise RequestError(f"{FILTER}: the nsys2prv here has no such option, which 0.5 has: leave it out")
        return self.types or [name for name in TYPES if name in known]

    def argv(self, words: Sequence[str], folder: Path | None = None) -> list[str]:
        """nsys2prv with these words, in its container if it has one. folder: where it runs."""
        if self.image is None:
            return [PROGRAM, *words]
        command, image = self.image
        bound = ["--bind", f"{folder}:{folder}", "--pwd", str(folder)] if folder else []
        return [command, "exec", *bound, str(image), PROGRAM, *words]


def help_of(options: Options) -> str:
    """What the nsys2prv here prints of itself: only it knows its types and options. Raises WorkError: it cannot be
    started."""
    return _output(options.argv(["--help"]), Path()).stdout


def installed() -> bool:
    """Whether nsys2prv is in PATH."""
    return shutil.which(PROGRAM) is not None


def convert(reports: Sequence[Path], out: Path, options: Options) -> list[str]:
    """Merge nsys reports (.nsys-rep) or exports (.sqlite) into `out`.prv, .pcf, .row; returns notes on the result.

    Raises RequestError: an option is wrong, or this nsys2prv has it not. TraceError: a report cannot be exported.
    WorkError: nsys2prv failed, or its trace is wrong; `out` is not touched.
    """
    # Without -m nsys2prv takes only the first of several reports.
    words = ["-t", ",".join(options.types_for(help_of(options))), *["-m"] * (len(reports) > 1)]
    words += [] if options.within is None else [f"{FILTER}={options.within}"]
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".nsys2prv-", dir=out.parent.absolute())
    except OSError as error:
        raise WorkError(
            f"{out.parent} cannot be written: {error.strerror}{whose(out)}; --out PREFIX writes elsewhere"
        ) from error
    with scratch as name:
        folder = Path(name)
        for index, report in enumerate(reports):
            # A container has its own nsys, which nsys2prv starts.
            source = report if options.image or report.suffix == ".sqlite" else exported(report)
            _link(source, folder / f"node{index}{source.suffix}")
        words += [*(f"node{index}.nsys-rep" for index in range(len(reports))), _TRACE]
        printed = _run(options.argv(words, folder), folder, out)
        _refuse_shared_processes(folder, reports)
        suffixes = (".row", ".pcf", ".prv")  # the .prv last: viewers open it
        for made in (folder / f"{_TRACE}{suffix}" for suffix in suffixes):
            if not made.is_file() or not made.stat().st_size:
                raise WorkError(f"nsys2prv ended without an error but left no {made.suffix}; try --engine own")
        for suffix in suffixes:
            (folder / f"{_TRACE}{suffix}").replace(out.with_name(out.name + suffix))
    if "Only one unique device ID" in printed:
        return ["nsys2prv saw one device id for several processes: counters may be on the wrong row"]
    return []


def _link(file: Path, target: Path) -> None:
    """A hard link, which a container sees with the folder; a copy if the file system allows no link."""
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copy(file, target)


def _run(argv: Sequence[str], folder: Path, out: Path) -> str:
    """What nsys2prv prints. Raises WorkError: it failed; a file beside `out` has its output."""
    done = _output(argv, folder)
    if done.returncode == 0:
        return done.stdout
    log = out.with_name(f"{out.name}.nsys2prv.log")
    log.write_text(" ".join(argv) + "\n" + done.stdout, encoding="utf-8")
    last = (done.stdout.strip().splitlines() or ["it printed nothing"])[-1].strip()
    raise WorkError(f"nsys2prv failed (exit {done.returncode}): {last} (see {log}); --engine own writes without it")


def _output(argv: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            text=True, errors="replace", check=False,
        )  # fmt: skip
    except OSError as error:
        raise WorkError(f"{argv[0]} cannot be started: {error.strerror}; {_OTHERWISE}") from error


def _refuse_shared_processes(folder: Path, reports: Sequence[Path]) -> None:
    """Raises WorkError: two reports share a process id, as two hosts may, and nsys2prv merged the two into one task."""
    report_of: dict[int, Path] = {}
    for index, report in enumerate(reports):
        export = folder / f"node{index}.sqlite"
        for pid in _processes(export) if export.is_file() else ():
            if pid in report_of:
                raise WorkError(
                    f"{report_of[pid]} and {report} both have a process {pid}, and nsys2prv merges the two into one "
                    "task: use --engine own"
                )
            report_of[pid] = report


def _processes(export: Path) -> set[int]:
    """The processes with CUDA calls or ranges in an export, which are the tasks of nsys2prv."""
    processes = set[int]()
    with closing(sqlite3.connect(f"{export.absolute().as_uri()}?mode=ro", uri=True)) as database:
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            with suppress(sqlite3.Error):  # an export has a table only if it has such events
                rows = database.execute(f"SELECT DISTINCT (globalTid >> 24) & 0xFFFFFF FROM {table}")
                processes |= {pid for (pid,) in rows if pid is not None}
    return processes
