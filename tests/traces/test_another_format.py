"""A trace format is a reader and one entry in the list of formats: everything behind it works on the Trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.traces import Trace, find_traces
from harness.traces import open as opening
from harness.traces.open import TraceFormat
from harness.traces.progress import OnProgress
from tests.synthetic.columns import Made

LINES = "0 100 ampere_sgemm_128x64_nn\n150 250 ampere_sgemm_128x64_nn\n"


def read_lines(path: Path, _progress: OnProgress) -> Trace:
    """Our own format of this test: start and end in nanoseconds, and a kernel's name."""
    made = Made(path=str(path))
    for line in path.read_text().splitlines():
        start, end, name = line.split(maxsplit=2)
        made.event(int(start), int(end), name)
    return made.trace()


def test_a_file_of_a_new_format_is_found_reported_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "FORMATS", [TraceFormat((".lines",), read_lines), *opening.FORMATS])
    (path := tmp_path / "rank0.lines").write_text(LINES)
    (tmp_path / "notes.txt").write_text("no trace")
    assert find_traces([tmp_path]) == [path]
    assert main(["report", str(path), "--json", "--window", "gpu"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert (device["window_ns"], device["compute_ns"], device["idle_ns"]) == (250, 200, 50)
    assert main(["export", "perfetto", str(path), "--out", str(tmp_path / "out.gz")]) == 0
    assert (tmp_path / "out.gz").stat().st_size > 0
