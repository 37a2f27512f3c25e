"""A file that cannot be written is one sentence with the flag and the path, and no advice that does not help."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.run import disk_error
from tests.synthetic.job import write_traces


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_traces(tmp_path, ranks=1)[0])


def traces_for(command: str, trace: str) -> list[str]:
    if command != "compare":
        return [trace]
    other = Path(trace).with_name("other")
    other.mkdir()
    return [trace, str(shutil.copy(trace, str(other)))]


OF_TRACES = ("export paraver", "export perfetto")


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("report", "--html"),
        ("export csv", "--out"),
        ("export parquet", "--out"),
        ("compare", "--html"),
        ("export paraver", "--out"),
        ("export perfetto", "--out"),
    ],
)
def test_a_place_that_cannot_be_written(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, flag: str
) -> None:
    place = tmp_path / "a file" / "a"
    place.parent.touch()
    assert main([*command.split(), *traces_for(command, trace), flag, str(place)]) == 1
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("slurm.sh: "))
    assert said.startswith(f"slurm.sh: {'' if command in OF_TRACES else flag + ' '}{place}")
    assert os.strerror(errno.ENOTDIR) in said
    assert "HARNESS_RUNS" not in said, "it has no effect there"


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_folder_is_no_file_for_a_page(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, *traces_for(command, trace), "--html", str(tmp_path)]) == 2
    assert "is a folder; give a file" in capsys.readouterr().err


def test_harness_runs_is_the_advice_where_it_says_where_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    for number in (errno.ENOSPC, errno.EACCES):
        refused = OSError(number, os.strerror(number))
        assert "HARNESS_RUNS" in str(disk_error(tmp_path / "exercise_1_DDP", refused))
        assert "HARNESS_RUNS" not in str(disk_error(tmp_path.parent / "a.html", refused))
