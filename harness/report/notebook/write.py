"""The notebook's file: a new one each time, because a student may have changed the last one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from harness.analysis.summary import Summary, Window
from harness.common.bounded_read import read_bounded_text
from harness.common.errors import RequestError
from harness.measure.request import resolve_path
from harness.report.exercise_0.terminal import is_comm_run
from harness.report.notebook.cells import notebook
from harness.report.notebook.loads import loads
from harness.report.page.write import run_among
from harness.run import naming_flag, write_atomically

ENDING = ".ipynb"
_NAME = f"report{ENDING}"


class Written(NamedTuple):
    """The notebook's path. `kept`: a changed file with the usual name, which stays beside it."""

    path: Path
    kept: Path | None = None


def check_notebook(asked: str, tokens: Sequence[str]) -> None:
    """Check the request before anything is measured. `asked`: a file's name, empty for the usual one.

    Raises:
        RequestError: it is a folder, an existing file or no notebook's name, or a run has nothing for a notebook.
    """
    for token in tokens:
        if is_comm_run(resolve_path(token)):
            raise RequestError(
                f"--notebook: {token} is a run of the communication tests, which have no steps to show; --html FILE "
                "writes their page"
            )
    path = Path(asked)
    if not asked:
        return
    if path.is_dir():
        raise RequestError(f"--notebook {asked}: is a folder; give a file, as in --notebook {path / _NAME}")
    if path.suffix != ENDING:
        like = path.with_suffix(ENDING)
        raise RequestError(
            f"--notebook {asked}: a notebook's name ends with {ENDING}, as in --notebook {like}"
        )
    if os.path.lexists(path):
        raise RequestError(
            f"--notebook {asked}: exists already and is never overwritten; give another name, for example "
            f"{_free(path)}"
        )


def write_notebook(
    tokens: Sequence[str], summaries: Sequence[Summary], window: Window, asked: str
) -> Written:
    """Write the notebook: to `asked`, else as report.ipynb into the run, or into this folder if it is not of one run.

    If a file with the usual name differs, for example because a student changed it, the new name gets a number.

    Raises:
        RequestError: a file with the requested name appeared meanwhile.
        WorkError: it cannot be written.
    """
    paths = [resolve_path(token) for token in tokens]
    text = notebook(loads(paths, summaries), summaries, window)
    if asked:
        if not _write_new(Path(asked), text):
            check_notebook(asked, ())
        return Written(Path(asked))
    run = run_among(tokens)
    usual = (run.path if run else Path()) / _NAME
    while True:
        path = _free(usual, text)
        if os.path.lexists(path) or _write_new(path, text):
            return Written(path, usual if path != usual else None)


def _write_new(path: Path, text: str) -> bool:
    """Whether the file was written: not if a file with its name appeared meanwhile."""
    with naming_flag("--notebook"):
        return write_atomically(path, text, lambda: not os.path.lexists(path))


def _free(path: Path, text: str | None = None) -> Path:
    """The first of report.ipynb, report-2.ipynb, … that does not exist or has the same text."""
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], numbered) if not os.path.lexists(each) or _holds(each, text))


def _holds(path: Path, text: str | None) -> bool:
    with suppress(OSError, ValueError):
        return text is not None and read_bounded_text(path) == text
    return False
