"""Reports of nsys: exported once by the nsys at hand, stale, or too new for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.traces import TraceError, open_trace
from harness.traces.find import find_traces
from tests.synthetic import nsys


def sentence(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        open_trace(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text
    return text


class FakeNsys:
    """An `nsys` on the PATH that copies a ready export, and counts how often it was asked."""

    def __init__(self, folder: Path, export: Path, script: str = 'cp "{export}" "$5"', help: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.asked = folder / "asked"
        program = folder / "nsys"
        helps = f'if [ "$2" = --help ]; then echo "{help}"; exit; fi'
        program.write_text(f'#!/bin/sh\n{helps}\necho "$@" >> "{self.asked}"\n{script.format(export=export)}\n')
        program.chmod(0o755)

    @property
    def count(self) -> int:
        return len(self.asked.read_text().splitlines()) if self.asked.exists() else 0


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "run with 'quotes' and spaces"
    folder.mkdir()
    path = folder / "profile_node0.nsys-rep"
    path.write_bytes(b"a report")
    return path


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNsys:
    fake = FakeNsys(tmp_path / "bin", nsys.nsys_step().saved(tmp_path / "ready.sqlite"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return fake


def test_fake_nsys_exports_a_report_once(report: Path, fake_nsys: FakeNsys) -> None:
    assert len(open_trace(report).events) == 4
    assert len(open_trace(report).events) == 4
    assert fake_nsys.count == 1
    assert len(list(report.parent.glob("*.sqlite"))) == 1, "nothing half-made stays behind"


def test_fake_nsys_exports_a_report_of_2021_and_earlier(report: Path, fake_nsys: FakeNsys) -> None:
    old = report.rename(report.with_suffix(".qdrep"))
    assert find_traces([old.parent]) == [old]
    assert len(open_trace(old).events) == 4
    assert fake_nsys.count == 1


def test_fake_nsys_exports_message_sizes_where_it_can(report: Path, fake_nsys: FakeNsys, tmp_path: Path) -> None:
    open_trace(report)
    assert "--include-json" not in fake_nsys.asked.read_text(), "an older nsys refuses what it does not know"
    FakeNsys(tmp_path / "bin", tmp_path / "ready.sqlite", help="--include-json= Possible values")
    for _ in range(2):
        assert len(open_trace(report).events) == 4
    assert fake_nsys.count == 2, "an export without sizes is made anew, once"
    assert "--include-json=true" in fake_nsys.asked.read_text().splitlines()[1]


def test_fake_nsys_exports_a_rewritten_report_again(report: Path, fake_nsys: FakeNsys) -> None:
    open_trace(report)
    times = report.stat().st_atime_ns, report.stat().st_mtime_ns
    report.write_bytes(b"a repeat")
    os.utime(report, ns=times)
    open_trace(report)
    assert fake_nsys.count == 2


def test_fake_nsys_is_not_asked_for_a_stale_export_beside_the_report(report: Path, fake_nsys: FakeNsys) -> None:
    report.with_name("profile_node0.sqlite").write_bytes(b"left from another run")
    assert len(open_trace(report).events) == 4
    assert fake_nsys.count == 1


# As nsys 2023.4.4 answers of a report of 2024.2.3.
NEWER = """
[ "$1" != --version ] || {{ echo NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0; exit; }}
echo "Exportation error: Report was created in Nsight Systems version (2024.2.3.38-242334140272v0), newer than your \
current version (2023.4.4.54-234433681190v0)." >&2
exit 1
"""


@pytest.mark.parametrize(
    ("script", "says"),
    [(NEWER, "was written by a newer nsys, and the nsys here is 2023.4.4 ("),
     ("echo broken >&2; exit 3", "exit code 3: broken"),
     ("exit 0", "cannot be exported")],
)  # fmt: skip
def test_fake_nsys_that_fails_is_one_sentence(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    FakeNsys(tmp_path / "bin", tmp_path / "none", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert says in sentence(report)
    assert [path.name for path in report.parent.iterdir()] == [report.name]


def test_without_nsys_a_report_is_one_sentence_and_its_own_export_is_taken(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("NSYS_HOME", raising=False)
    assert "cannot be read without nsys, and nsys is not installed" in sentence(report)
    assert "`bash scripts/fetch-nsys FOLDER`" in sentence(report)
    export = nsys.nsys_step().saved(report.with_name("profile_node0.sqlite"))
    assert len(open_trace(report).events) == 4
    os.utime(export, ns=(0, 0))
    assert "nsys is not installed" in sentence(report), "an export older than its report is not its own"
