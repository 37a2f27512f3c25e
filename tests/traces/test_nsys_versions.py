"""Reports of two real versions of nsys: each reads its own and older ones; of a newer one it says what to type."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.traces import Trace, TraceError, open_trace
from harness.traces.nsys.export import export_command, written_by
from tests import real_nsys
from tests.waiting import limit_s

PROGRAM = """
import nvtx
for step in range(4):
    with nvtx.annotate(f"batch_{step}", domain="training"):
        open("/dev/null").close()
"""
OPTIONS = ["--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none", "-e", "NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]
NAMES = {real_nsys.NEWEST: "of the newest's.nsys-rep", real_nsys.OLDER: "of an older.nsys-rep"}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same program, recorded with each version."""
    made = {name: tmp_path_factory.mktemp("recorded") / file for name, file in NAMES.items()}
    for name, report in made.items():
        nsys = real_nsys.folder(name) / "nsys"
        words = [str(nsys), "profile", *OPTIONS, f"--output={report.with_suffix('')}"]
        real_nsys.recorded([*words, sys.executable, "-c", PROGRAM], report).check_returncode()
    return made


@pytest.fixture
def with_nsys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets PATH to the nsys that a test names."""
    monkeypatch.delenv("NSYS_HOME", raising=False)
    return monkeypatch


def use(patch: pytest.MonkeyPatch, name: str) -> str:
    """Lets PATH find this nsys first; its version as `nsys --version` has it."""
    folder = real_nsys.folder(name)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    said = subprocess.run(
        [folder / "nsys", "--version"], capture_output=True, text=True, check=True, timeout=limit_s()
    ).stdout
    version = re.search(r"\d+\.\d+\.\d+", said)
    assert version is not None
    return version[0]


def content(trace: Trace) -> tuple[list[str], set[str], set[bool]]:
    """Names of the ranges in order, their domains, and whether they last."""
    ranges = trace.ranges
    return (
        [trace.names[i] for i in ranges.name],
        {trace.names[i] for i in ranges.domain},
        set((ranges.end_ns > ranges.start_ns).tolist()),
    )


@pytest.mark.parametrize("wrote", [real_nsys.NEWEST, real_nsys.OLDER])
def test_the_newest_reads_its_own_report_and_an_older_one(
    reports: dict[str, Path], tmp_path: Path, with_nsys: pytest.MonkeyPatch, wrote: str
) -> None:
    use(with_nsys, real_nsys.NEWEST)
    report = Path(shutil.copy(reports[wrote], tmp_path))
    assert content(open_trace(report)) == ([f"batch_{i}" for i in range(4)], {"training"}, {True})


def test_of_a_newer_report_an_older_one_says_both_versions_and_what_to_type(
    reports: dict[str, Path], tmp_path: Path, with_nsys: pytest.MonkeyPatch
) -> None:
    newest = use(with_nsys, real_nsys.NEWEST)
    older = use(with_nsys, real_nsys.OLDER)
    folder = tmp_path / "a run"
    folder.mkdir()
    report = Path(shutil.copy(reports[real_nsys.NEWEST], folder))
    with pytest.raises(TraceError) as caught:
        open_trace(report)
    text = str(caught.value)
    assert text.startswith(f"{report}: was written by nsys {newest}, and the nsys here is {older} (")
    typed = text.partition("`")[2].rpartition("`")[0]
    assert [path.name for path in folder.iterdir()] == [report.name], "nothing half-made stays behind"

    use(with_nsys, real_nsys.NEWEST)
    assert shlex.split(typed)[:4] == ["nsys", "export", "--type", "sqlite"]
    subprocess.run(["bash", "-c", typed], check=True, capture_output=True, timeout=limit_s())
    use(with_nsys, real_nsys.OLDER)
    export = report.with_suffix(".sqlite")
    assert content(open_trace(export)) == content(open_trace(report)), "the export beside it is taken"
    os.utime(export, ns=(0, 0))
    with pytest.raises(TraceError, match="was written by nsys"):
        open_trace(report)


def test_a_report_tells_its_version_from_2023_on(reports: dict[str, Path]) -> None:
    assert written_by(reports[real_nsys.NEWEST]) >= (2023, 4)
    assert written_by(reports[real_nsys.OLDER]) == ()
    assert "--include-json" not in export_command(reports[real_nsys.OLDER])
