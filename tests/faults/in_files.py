"""Faults of a run's files: deleted, cut short, replaced, dated into the future; and what a training prints."""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.fault import BOTH, LOCAL, End, Fault, Place, Setting, nothing
from tests.faults.in_ranks import LOGS, METRICS, TRACES
from tests.faults.scene import Scene

WHOLE = (METRICS, TRACES, "status.json")
YEAR_S = 365 * 86400
REPORT = "slurm.sh report RUN"


def while_it_runs(change: Callable[[Path], object], name: str) -> Callable[[Scene], None]:
    """Change a file or folder of the run while it is in its window."""

    def inject(scene: Scene) -> None:
        scene.reached("window")
        change(scene.path / name)

    return inject


def after_its_end(change: Callable[[Path], object], name: str) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.reached("end")
        scene.wait_for_end()
        change(scene.path / name)

    return inject


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def an_archive_instead(path: Path) -> None:
    plain = path.rename(path.with_suffix(".moved"))
    with tarfile.open(path, "w:gz") as made:
        made.add(plain, path.name)
    plain.unlink()


def a_folder_instead(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def a_file_instead(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("not a folder")


def from_the_future(path: Path) -> None:
    """The clock was a year ahead when these were written."""
    for each in (path, *path.rglob("*")):
        os.utime(each, (time.time() + YEAR_S, time.time() + YEAR_S))
    status = path / "status.json"
    early = status.read_text().replace('"started_ns": 1', '"started_ns": 2')
    status.write_text(early)


def logs_removed(scene: Scene) -> None:
    scene.reached("window")
    shutil.rmtree(scene.logs)


def _fault(  # a row of a table
    name: str,
    what: str,
    inject: Callable[[Scene], None],
    tells: str,
    kept: str,
    *,
    then: str = REPORT,
    told_by: str = "report",
    keeps: tuple[str, ...] = WHOLE,
    takes: tuple[str, ...] = (),
    where: tuple[Place, ...] = LOCAL,
    quick: tuple[Place, ...] = (),
    state: End = "completed",
    exit_code: int | None = 0,
    slurm: str = "",
    training: str = "",
    steps: int = 8,
) -> Fault:
    return Fault(
        name=name, what=what, inject=inject, state=state, tells=tells, kept=kept, then=then, told_by=told_by,
        keeps=keeps, takes=takes, where=where, quick=quick, exit_code=exit_code, slurm=slurm,
        setting=Setting(training=training, steps=steps, ranks=2),
    )  # fmt: skip


RANK1 = "torch/rank1.json.gz"
STEP = r"of \S+ \w+ a step|No part that could be avoided"
LOST = r"run\.json.*"
FAULTS = (
    _fault(
        "trace-cut", "a trace is truncated", after_its_end(cut, RANK1), r"rank1.json.gz: [^).\n]*",
        "the other ranks' traces, and all metrics", keeps=("torch/rank0.json.gz", METRICS), where=BOTH,
    ),
    _fault(
        "trace-empty", "a trace is empty", after_its_end(emptied, RANK1), r"rank1.json.gz: [^).\n]*",
        "the other ranks' traces, and all metrics", keeps=("torch/rank0.json.gz", METRICS),
    ),
    _fault(
        "trace-deleted", "a trace is deleted", after_its_end(removed, RANK1), r"a trace is missing: [^).\n]*",
        "the other ranks' traces, and all metrics", keeps=("torch/rank0.json.gz", METRICS),
    ),
    _fault(
        "trace-an-archive", "a trace is packed in an archive of the same name",
        after_its_end(an_archive_instead, RANK1), r"rank1.json.gz: is an archive",
        "the other ranks' traces, and all metrics", keeps=("torch/rank0.json.gz", METRICS),
    ),
    _fault(
        "trace-a-folder", "there is a folder instead of a trace", after_its_end(a_folder_instead, RANK1),
        r"rank1.json.gz[^).\n]*",
        "the other ranks' traces, and all metrics", keeps=("torch/rank0.json.gz", METRICS),
    ),
    _fault(
        "traces-no-folder", "there is a file instead of the traces' folder, so no trace can be written",
        while_it_runs(a_file_instead, "torch"), "FileExistsError|NotADirectoryError", "all metrics", then=LOGS,
        told_by="logs", keeps=(METRICS,), state="failed", exit_code=1, steps=30,
    ),
    _fault(
        "metrics-cut", "the metrics of a rank are truncated", after_its_end(cut, "metrics/rank1.jsonl"),
        STEP, "all traces",  keeps=(TRACES, METRICS),
    ),
    _fault(
        "metrics-deleted", "the metrics are deleted", after_its_end(removed, "metrics"), STEP, "all traces",
        keeps=(TRACES,),
    ),
    _fault(
        "metrics-deleted-while-training", "the metrics are deleted while it trains",
        while_it_runs(removed, "metrics"), STEP, "all traces", keeps=(TRACES,), steps=30,
    ),
    _fault(
        "status-deleted-while-training", "status.json is deleted while it trains",
        while_it_runs(removed, "status.json"), "completed, exit 0", "everything",
        told_by="status", steps=30, where=BOTH,
    ),
    _fault(
        "status-cut", "status.json is truncated", after_its_end(cut, "status.json"), "completed",
        "everything: run.json has the end too", told_by="status", takes=("status.json",), where=BOTH,
        exit_code=None,
    ),
    _fault(
        "status-a-folder", "there is a folder instead of status.json", after_its_end(a_folder_instead, "status.json"),
        "completed",
        "everything: run.json has the end too", told_by="status", takes=("status.json",), exit_code=None,
    ),
    _fault(
        "record-deleted", "run.json is deleted", after_its_end(removed, "run.json"), LOST,
        "traces, metrics and logs; report answers from them", told_by="status", takes=("run.json",), where=BOTH,
        quick=LOCAL, state="unknown", exit_code=1, slurm="COMPLETED",
    ),
    _fault(
        "record-cut", "run.json is truncated", after_its_end(cut, "run.json"), LOST,
        "traces, metrics and logs; report answers from them", told_by="status", takes=("run.json",), where=BOTH,
        state="unknown", exit_code=1, slurm="COMPLETED",
    ),
    _fault(
        "record-deleted-while-training", "run.json is deleted while it trains", while_it_runs(removed, "run.json"),
        "completed, exit 0", "everything: the job's program writes it again at the end", told_by="status",
        steps=30, where=BOTH,
    ),
    _fault(
        "logs-deleted-while-training", "the log folder is deleted while it trains", logs_removed,
        "its logs are missing", "traces and metrics", told_by="logs", takes=("logs",), steps=30, where=BOTH,
    ),
    _fault(
        "monitor-files-deleted", "the monitor's folder is deleted while it trains",
        while_it_runs(removed, "gpus-monitor"),
        "completed, exit 0", "traces and metrics", told_by="status", steps=30, where=BOTH,
    ),
    _fault(
        "node-status-cut", "a node's status file is truncated", after_its_end(cut, "node-status/0.json"),
        "completed, exit 0",
        "everything", told_by="status",
    ),
    _fault(
        "future", "the clock was a year ahead", after_its_end(from_the_future, "."), STEP, "everything",
        exit_code=None,
    ),
    _fault(
        "no-traces", "the training exits 0 without a trace", nothing, "missing: torch/rank0.json.gz",
        "its metrics", told_by="status", keeps=(METRICS,), training="at('window', lambda rank: os._exit(0))",
        where=BOTH,
        quick=BOTH,
    ),
    _fault(
        "much-output", "the training prints 100 MB", nothing, "x" * 60, "everything", told_by="logs",
        training="at('window', lambda rank: [print('x' * 999999) for _ in range(50)])",
    ),
    _fault(
        "bad-output", "the training prints bytes that are not text", nothing, "beg\ufffd\ufffdin",
        "everything", told_by="logs",
        training="at('window', lambda rank: os.write(1, b'beg\\xff\\xfein \\x1b[31m\\n'))", where=BOTH,
    ),
    _fault(
        "closed-output", "the training closes its output", nothing, "completed, exit 0", "everything", told_by="status",
        training="at('window', lambda rank: (os.close(1), os.close(2)))",
    ),
    _fault(
        "file-limit", "a file-size limit of the account ends the trace", nothing, "failed, exit 1",
        "its metrics", then=LOGS, told_by="status", keeps=(METRICS,), state="failed", exit_code=1,
        training="import resource\nat('trace', lambda rank: resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)))",
    ),
    _fault(
        "memory-limit", "a rank gets no more memory", nothing, "MemoryError", "its metrics", then=LOGS, told_by="logs",
        keeps=(METRICS,), state="failed", exit_code=1, where=BOTH,
        training="import resource\n"
        "at('window', lambda rank: (resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)), bytearray(1 << 40)))",
    ),
)  # fmt: skip
