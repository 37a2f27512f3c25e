"""What report, compare, ls and export refuse: one sentence with the flag and the path, the exit code, and nothing
written; and no advice that does not help."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.run import disk_error
from tests.launch.launch_shared import a_run
from tests.synthetic.job import write_traces

FOLDER = "--html {folder}: is a folder; give a file"
REFUSED = (
    ("report {one}/caf\udce9", 2, "is a name that is not UTF-8 text, which no report can hold: rename it"),
    ("report {one} --html {folder}", 2, FOLDER),
    ("compare {one} {two} --html {folder}", 2, FOLDER),
    ("report {one} --html {nowhere}", 1, "--html {nowhere}"),
    ("compare {one} {two} --html {nowhere}", 1, "--html {nowhere}"),
    ("export csv {one} --out {nowhere}", 1, "--out {nowhere}"),
    ("export paraver {one} --out {nowhere}", 1, "{nowhere}"),
    ("export perfetto {one} --out {nowhere}", 1, "{nowhere}"),
)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two jobs of two ranks, a folder with a run, and a place below a file, where nothing can be written."""
    root = tmp_path_factory.mktemp("refused")
    places = {name: root / name for name in ("one", "two", "folder", "a file")}
    for name in ("one", "two"):
        write_traces(places[name])
    a_run(places["folder"], "local-1")
    places["a file"].touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_RUNS", str(places["folder"]))
        yield {name: str(path) for name, path in places.items()} | {"nowhere": str(places["a file"] / "a")}


@pytest.mark.parametrize(("command", "code", "said"), REFUSED)
def test_what_is_refused(
    scene: dict[str, str], capsys: pytest.CaptureFixture[str], command: str, code: int, said: str
) -> None:
    root = Path(scene["folder"]).parent
    before = sorted(root.rglob("*"))
    assert main([word.format(**scene) for word in command.split()]) == code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("slurm.sh: ")]
    assert said.format(**scene) in line and (code == 2 or os.strerror(errno.ENOTDIR) in line)
    assert "HARNESS_RUNS" not in line, "it has no effect there"
    assert sorted(root.rglob("*")) == before


def test_harness_runs_is_the_advice_where_it_says_where_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    for number in (errno.ENOSPC, errno.EACCES):
        refused = OSError(number, os.strerror(number))
        assert "HARNESS_RUNS" in str(disk_error(tmp_path / "exercise_1_DDP", refused))
        assert "HARNESS_RUNS" not in str(disk_error(tmp_path.parent / "a.html", refused))
