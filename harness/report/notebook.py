"""A report as a notebook that students change: its cells, the data that they load, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.analysis.summary import Summary, Window
from harness.common.bounded_read import read_bounded_text
from harness.common.errors import RequestError
from harness.common.paths import IN_CHECKOUT, ROOT, TEMPLATES
from harness.measure.paths import run_directories
from harness.measure.request import resolve_path
from harness.report.compare.tables import letter
from harness.report.exercise_0.results import is_comm_run
from harness.report.page.write import run_among
from harness.report.tables.replay import worthwhile_changes
from harness.run import naming_flag, write_atomically

Loaded = str | list[str]  # a run's folder or a trace's path; the files of one job
_CODE, _MARKDOWN = "# %%", "# %% [markdown]"
ENDING = ".ipynb"
_NAME = f"report{ENDING}"


class Literal(str):
    """A value as Python writes it."""


class Cell(NamedTuple):
    """One cell: `code` or `markdown`, with its text."""

    kind: str
    text: str


def notebook(jobs: Mapping[str, Loaded], summaries: Sequence[Summary], window: Window) -> str:
    """The notebook's text. jobs: names, and what is loaded. summaries: they decide which cells there are."""
    cells = [_as_json(cell, number) for number, cell in enumerate(_cells(jobs, summaries, window), 1)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cells(jobs: Mapping[str, Loaded], summaries: Sequence[Summary], window: Window) -> Iterator[Cell]:
    """The template's cells: each begins with a line of its own, which no literal can hold."""
    script = _environment().get_template("notebook.py.j2")
    text = script.render(
        checkout=str(ROOT) if IN_CHECKOUT else "",
        jobs=jobs,
        window=Literal("" if window is Window.STEPS else f", window={window.value!r}"),
        has=_has(summaries),
    )
    kind, lines = "", list[str]()
    for line in [*text.splitlines(), _CODE]:
        if line not in (_CODE, _MARKDOWN):
            lines.append(line)
            continue
        if kind:
            yield Cell(kind, "\n".join(lines).strip("\n"))
        kind, lines = ("code" if line == _CODE else "markdown"), []


def _has(summaries: Sequence[Summary]) -> dict[str, bool]:
    of_one: dict[str, Callable[[Summary], Any]] = {
        "findings": lambda s: s.findings,
        "what_ifs": worthwhile_changes,
        "split": lambda s: any(d.window_ns for d in s.devices),
        "step_split": lambda s: any(d.window_ns and d.steps for d in s.devices),
        "steps": lambda s: any(r.durations_ns for r in s.steps.per_rank),
        "clock": lambda s: any(t.step_durations_ns for t in s.training),
        "idle": lambda s: any(d.window_ns and d.idle_causes for d in s.devices),
        "kinds": lambda s: s.kinds,
        "collectives": lambda s: s.collectives,
        "sizes": lambda s: s.message_sizes,
    }
    return {name: any(map(shown, summaries)) for name, shown in of_one.items()}


def _as_json(cell: Cell, number: int) -> dict[str, Any]:
    lines = cell.text.splitlines(keepends=True)
    shared = {"cell_type": cell.kind, "id": f"cell-{number}", "metadata": {}}
    if cell.kind == "code":
        return {**shared, "execution_count": None, "outputs": [], "source": lines}
    return {**shared, "source": [line.removeprefix("#").removeprefix(" ") for line in lines]}


def literal(value: Loaded, depth: int = 0) -> Literal:
    """A path or a list of paths in Python, on one line or one a line; `depth`: how far it is indented.

    >>> literal('a "b"\\n# %%')
    '\\'a "b"\\\\n# %%\\''
    >>> print(literal(["a", "b"]))
    [
        'a',
        'b',
    ]
    """
    if isinstance(value, str):
        return Literal(repr(value))
    indent = "    " * depth
    return Literal("\n".join(["[", *(f"{indent}    {each!r}," for each in value), f"{indent}]"]))


def _only_literals(value: object) -> object:
    """For Jinja's `finalize`: a template that forgets the filter fails in every test of it."""
    if not isinstance(value, Literal):
        raise TypeError(f"{value!r} comes into a cell without the filter `python`")
    return value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES / "report"),
        undefined=StrictUndefined,
        autoescape=False,  # Python, not HTML: the filter writes literals
        finalize=_only_literals,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["python"] = literal
    return environment


def loads(paths: Sequence[Path], summaries: Sequence[Summary]) -> dict[str, Loaded]:
    """Letters, as in a comparison, and the absolute paths that are loaded for each summary."""
    files = [[Path(path) for path in dict.fromkeys(source.path for source in s.sources)] for s in summaries]
    traced = [file for of_job in files for file in of_job]
    runs = sorted({str(run) for run in run_directories(paths)})
    # The runs without a trace that was read, in the order of their summaries, which come last.
    untraced = (str(Path(run).absolute()) for run in runs if not _holds(Path(run), traced))
    return {letter(i): _loaded(paths, of_job, files) if of_job else next(untraced) for i, of_job in enumerate(files)}


def _loaded(paths: Sequence[Path], of_job: Sequence[Path], files: Sequence[Sequence[Path]]) -> Loaded:
    """The path that holds all files of this job and none of another, else its files."""
    for path in paths:
        if all(_holds(path, [file]) for file in of_job) and sum(_holds(path, other) for other in files) == 1:
            return str(path.absolute())
    whole = [str(file.absolute()) for file in of_job]
    return whole if len(whole) > 1 else whole[0]


def _holds(path: Path, files: Sequence[Path]) -> bool:
    return any(path == file or path in file.parents for file in files)


class Written(NamedTuple):
    """The notebook's path. `kept`: a changed file with the usual name, which stays beside it."""

    path: Path
    kept: Path | None = None


def check_notebook(asked: Path | None, tokens: Sequence[str]) -> None:
    """Check early. asked: a file, or None. Raises RequestError: not a new notebook's name, or a run without steps."""
    for token in tokens:
        if is_comm_run(resolve_path(token)):
            raise RequestError(
                f"export notebook: {token} is a run of the communication tests, which have no steps to show; report "
                "--html FILE writes their page"
            )
    if asked is None:
        return
    if asked.is_dir():
        raise RequestError(f"--out {asked}: is a folder; give a file, as in --out {asked / _NAME}")
    if asked.suffix != ENDING:
        like = asked.with_suffix(ENDING)
        raise RequestError(f"--out {asked}: a notebook's name ends with {ENDING}, as in --out {like}")
    if os.path.lexists(asked):
        raise RequestError(
            f"--out {asked}: exists already and is never overwritten; give another name, for example {_free(asked)}"
        )


def write_notebook(tokens: Sequence[str], summaries: Sequence[Summary], window: Window, asked: Path | None) -> Written:
    """Write the notebook: to `asked`, else as report.ipynb into the run, or into this folder if it is not of one run.
    If a file with the usual name differs, for example because a student changed it, the new name gets a number. Raises
    RequestError: a file with the requested name appeared meanwhile. WorkError: it cannot be written."""
    paths = [resolve_path(token) for token in tokens]
    text = notebook(loads(paths, summaries), summaries, window)
    if asked is not None:
        if not _write_new(asked, text):
            check_notebook(asked, ())
        return Written(asked)
    run = run_among(tokens)
    usual = (run.path if run else Path()) / _NAME
    while True:
        path = _free(usual, text)
        if os.path.lexists(path) or _write_new(path, text):
            return Written(path, usual if path != usual else None)


def _write_new(path: Path, text: str) -> bool:
    """Whether the file was written: not if a file with its name appeared meanwhile."""
    with naming_flag("--out"):
        return write_atomically(path, text, lambda: not os.path.lexists(path))


def _free(path: Path, text: str | None = None) -> Path:
    """The first of report.ipynb, report-2.ipynb, … that does not exist or has the same text."""
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(each for each in chain([path], numbered) if not os.path.lexists(each) or _has_text(each, text))


def _has_text(path: Path, text: str | None) -> bool:
    with suppress(OSError, ValueError):
        return text is not None and read_bounded_text(path) == text
    return False
