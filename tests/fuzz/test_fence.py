"""The fence tells each thing that it is there to tell: a property that nothing breaks would prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from harness.common.errors import RequestError
from tests.fuzz import fence, trace_files
from tests.fuzz.box import Box
from tests.fuzz.fence import Case, run_case
from tests.fuzz.sandbox import RECORDED


def _main(act: Callable[[], object] = Path, said: str = "slurm.sh: no", code: int = 2) -> Callable[[list[str]], int]:
    """A program that does this, says that, and ends so. What the fence refuses does not end it."""

    def run(_argv: list[str]) -> int:
        with suppress(FileNotFoundError, ProcessLookupError):
            act()
        print(said, file=sys.stderr)
        return code

    return run


SBATCH = partial(subprocess.run, ["sbatch", "job"], check=False, timeout=60)
BAD = {
    "KeyError": _main(partial(dict[str, str]().__getitem__, "x")),
    "refused, and written": _main(partial(Path.write_text, Path("left"), "x")),
    "no sentence": _main(said=""),
    "an empty sentence": _main(said="slurm.sh: "),
    "exit code 3": _main(code=3),
    "a traceback was printed": _main(said="Traceback (most recent call last):", code=1),
    "a dry run started ['sbatch job']": _main(SBATCH, code=0),
    "a signal was sent": _main(partial(os.kill, 1, signal.SIGTERM), code=0),
}


@pytest.mark.parametrize("fault", BAD)
def test_what_must_not_be_is_told(box: Box, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "main", BAD[fault])
    (ended,) = run_case(box, Case([["--dry-run"]]))
    assert fault in ended.fault
    assert not box.changed()


def test_a_command_that_does_not_end_is_ended(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "main", lambda _argv: time.sleep(3600))  # a command that does not end
    (ended,) = run_case(box, Case([["ls"]]), wait_s=0.1)
    assert "no end within" in ended.fault


def test_nothing_outside_of_the_sandbox_can_be_written(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_argv: list[str]) -> int:
        with pytest.raises(PermissionError):
            (tmp_path / "outside").write_text("x", encoding="utf-8")
        raise RequestError("refused")

    monkeypatch.setattr("harness.cli.main._dispatch", write)
    (ended,) = run_case(box, Case([["ls"]]))
    assert (ended.outcome, ended.err) == ("refused", "slurm.sh: refused\n")
    assert not (tmp_path / "outside").exists()


WHOLE = {
    "a run": Case([["report", str(RECORDED), "--no-html", "--json"]]),
    "kineto": Case(
        [["report", "new", "--no-html", "--json"]],
        {f"new/rank{rank}.json": trace_files.kineto_rank(rank) for rank in (0, 1)},
    ),
    "nsys": Case([["report", "new", "--no-html", "--json"]], {"new/one.sqlite": trace_files.nsys_export()}),
    "rocpd": Case([["report", "new", "--no-html", "--json"]], {"new/one.db": trace_files.rocpd_database()}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_recording_is_good_and_so_told_where_it_must_not_be(box: Box, name: str) -> None:
    (ended,) = run_case(box, WHOLE[name])
    assert (ended.outcome, ended.fault) == ("done", "")
    (told,) = run_case(box, WHOLE[name]._replace(cut=True))
    assert told.fault == "good, from a file that lacks its end"
