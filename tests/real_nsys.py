"""The real nsys that `scripts/test` fetches: the newest of Debian's that runs here, and Debian 12's.

A test has Debian 12's, else the newest: 2023.4 lost one in seven recordings of a training
(configs/nsys/README.md). What differs between versions, or may, is tested with both: `EACH_NSYS`, or
`EACH_NSYS_AT_LENGTH`, whose newest is left out unless all tests run.

What a test asks of a recording goes through `kept`: nsys gives up an agent that does not answer within a second or two,
whatever it is told, so that another process on the core can cost it a recording.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from harness.launch.on_node.leftovers import end_agent
from tests.waiting import limit_s

# Before the launch of a training under nsys, whose agent is given up if it does not start within seconds: on a busy
# machine it comes first. Where that is not allowed, both run all the same.
FIRST = ("nice", "-n", "-15")
FIRST_ON_THE_NODE = "renice -n -15 -p $$ >/dev/null 2>&1 || :"
NEWEST, OLDER = "nsys", "nsys-bookworm"  # folders of the environment
MOST_RECORDINGS = 4
_AGENT_LOST = re.compile(r"Connection to the Agent lost|Failed to connect to Agent")
_lost: list[str] = []  # of this session
Recording = TypeVar("Recording")


@cache
def _found(name: str) -> tuple[Path, str] | None:
    """The folder and version of one that is here; the newest may be one on PATH."""
    places = [str(Path(sys.prefix) / name)]
    if name == NEWEST:
        places = [*os.environ["PATH"].split(os.pathsep), *places]
    nsys = shutil.which("nsys", path=os.pathsep.join(places))
    if nsys is None:
        return None
    said = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False, timeout=limit_s()).stdout
    version = re.search(r"version (\d+\.\d+)", said)
    return Path(nsys).parent, version[1] if version else "unknown"


def folder(name: str) -> Path:
    """The folder of one, for a PATH; skips where it is not here."""
    found, newest = _found(name), _found(NEWEST)
    if found is None:
        pytest.skip(f"{name} is not here, and scripts/fetch-nsys can fetch it only as root on Debian")
    if name != NEWEST and newest is not None and newest[1] == found[1]:
        pytest.skip(f"the newest nsys that runs here is {found[1]} too")
    return found[0]


def usual() -> str:
    """The one that a test has which names none."""
    newest, older = _found(NEWEST), _found(OLDER)
    return OLDER if older and (newest is None or newest[1] != older[1]) else NEWEST


class LostRecordingError(Exception):
    """nsys lost its agent, as it says itself."""


def recorded(
    argv: Sequence[str | Path], report: Path, is_whole: Callable[[Path], object] = bool
) -> subprocess.CompletedProcess[str]:
    """An `nsys profile` into `report` that has ended, with what it and its program printed. It is lost where there is
    no report, or one that is not whole; an agent that it left is ended.

    The agent holds the output of the process that started it: so that is a file, not a pipe.
    """
    session = f"tests-{os.getpid()}"

    def once() -> subprocess.CompletedProcess[str]:
        for part in report.parent.glob(f"{report.stem}.*"):  # of a recording that was lost
            part.unlink()
        with tempfile.TemporaryFile("w+") as said:
            nsys = subprocess.Popen([*argv[:2], f"--session-new={session}", *argv[2:]], stdout=said, stderr=said)
            try:
                nsys.wait(limit_s())
            finally:
                nsys.kill()
                end_agent(session)
            said.seek(0)
            return subprocess.CompletedProcess(argv, nsys.wait(limit_s()), said.read())

    return kept(once, lambda _: report.exists() and is_whole(report))


def ranges(report: Path, nsys_folder: Path) -> Counter[str]:
    """The count of each range in a report, from the export of nsys; empty: nsys lost what it recorded."""
    if not report.exists():
        return Counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "export.sqlite"
        argv: list[str | Path] = [nsys_folder / "nsys", "export", "--type=sqlite", f"--output={out}", report]
        subprocess.run(argv, check=True, capture_output=True, timeout=limit_s())
        with closing(sqlite3.connect(out)) as export:
            if not list(export.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'")):
                return Counter()
            texts = "SELECT coalesce(text, value) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
            return Counter(text for (text,) in export.execute(f"{texts} WHERE eventType = 59"))


def checked(code: int, said: str) -> None:
    """Raises LostRecordingError: a launch failed for nsys's agent; AssertionError: for anything else."""
    if code and _AGENT_LOST.search(said):
        raise LostRecordingError(said)
    assert code == 0, said


def kept(record: Callable[[], Recording], is_whole: Callable[[Recording], object]) -> Recording:
    """A recording that nsys has not lost: the one place where one may be made again, up to `MOST_RECORDINGS` times.

    No state shows beforehand that nsys will lose it. With its agent stopped for three seconds at the start of a
    program, 2022.4 ended with 1, "Failed to connect to Agent"; on two busy cores it also ended well without a report,
    and wrote reports without a range. Each lost one is counted, in a warning that pytest shows; the last is returned,
    or its error raised, for the test to fail with.
    """
    for number in range(1, MOST_RECORDINGS + 1):
        try:
            recording = record()
            if is_whole(recording) or number == MOST_RECORDINGS:
                return recording
        except LostRecordingError:
            if number == MOST_RECORDINGS:
                raise
        _lost.append(os.environ.get("PYTEST_CURRENT_TEST", ""))
        warnings.warn(f"nsys lost recording {number} of this test, and {len(_lost)} of this session", stacklevel=2)
    raise AssertionError


def _each(*newest_marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    ids = {name: found[1] if (found := _found(name)) else name for name in (NEWEST, OLDER)}
    each = [
        pytest.param(NEWEST, id=ids[NEWEST], marks=newest_marks),
        pytest.param(OLDER, id=f"{ids[OLDER]}-of-debian-12"),
    ]
    return pytest.mark.parametrize("nsys_folder", each, indirect=True)


EACH_NSYS = _each()
EACH_NSYS_AT_LENGTH = _each(pytest.mark.long)
