"""The notebook's cells from their template, and the notebook as JSON (nbformat 4.5). Measures and draws nothing: the
cells do, when they are run. A name that others chose comes into a cell only as a literal of Python."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.analysis.summary import Summary, Window
from harness.common.paths import IN_CHECKOUT, PYTHON_PATH, TEMPLATES
from harness.report.tables.replay import worthwhile_changes

Loaded = str | list[str]  # a run's folder or a trace's path; the files of one job
_CODE, _MARKDOWN = "# %%", "# %% [markdown]"


class Literal(str):
    """A value as Python writes it."""


class Cell(NamedTuple):
    """One cell: `code` or `markdown`, with its text."""

    kind: str
    text: str


def notebook(jobs: Mapping[str, Loaded], summaries: Sequence[Summary], window: Window) -> str:
    """The notebook's text. `jobs`: the names, and what is loaded for each; `summaries`: they decide which cells have
    something to show. The same jobs with the same kinds of numbers give the same text.
    """
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
    script = (
        _environment()
        .get_template("notebook.py.j2")
        .render(
            checkout=str(PYTHON_PATH) if IN_CHECKOUT else "",
            jobs=jobs,
            window=Literal("" if window is Window.STEPS else f", window={window.value!r}"),
            has=_has(summaries),
        )
    )
    kind, lines = "", list[str]()
    for line in [*script.splitlines(), _CODE]:
        if line not in (_CODE, _MARKDOWN):
            lines.append(line)
            continue
        if kind:
            yield Cell(kind, "\n".join(lines).strip("\n"))
        kind, lines = ("code" if line == _CODE else "markdown"), []


def _has(summaries: Sequence[Summary]) -> dict[str, bool]:
    """Which cells have something to show, of any of the jobs."""

    def some(of: Any) -> bool:
        return any(map(of, summaries))

    return {
        "findings": some(lambda s: s.findings),
        "what_ifs": some(worthwhile_changes),
        "split": some(lambda s: any(d.window_ns for d in s.devices)),
        "step_split": some(lambda s: any(d.window_ns and d.steps for d in s.devices)),
        "steps": some(lambda s: any(r.durations_ns for r in s.steps.per_rank)),
        "clock": some(lambda s: any(t.step_durations_ns for t in s.training)),
        "idle": some(lambda s: any(d.window_ns and d.idle_causes for d in s.devices)),
        "kinds": some(lambda s: s.kinds),
        "collectives": some(lambda s: s.collectives),
        "sizes": some(lambda s: s.message_sizes),
    }


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
