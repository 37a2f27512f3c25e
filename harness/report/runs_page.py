"""The page of all runs: a table to sort and to filter, and the command that compares two. It reads no run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from harness.common.display.format import with_scripts
from harness.common.paths import COMMAND
from harness.report.elements import StepBar
from harness.report.page.compose import page_environment, page_part
from harness.run import when

_COLUMNS = ("id", "state", "asked", "step", "mean step", "verdict", "submitted", "size")


class ListedRun(NamedTuple):
    """numbers: what columns with units are sorted by. href: its page. name: what a command calls it, or empty."""

    cells: Mapping[str, str]
    numbers: Mapping[str, int]
    bar: StepBar | None
    href: str
    name: str


def runs_page(runs: Sequence[ListedRun], notes: Sequence[str], folder: str) -> str:
    """The page as HTML, its bars on one scale. notes: sentences below the table. folder: where the runs are."""
    scripts = [page_part(name) for name in ("bytes.js", "paper.js", "list.js")]
    labels: dict[str, dict[str, None]] = {}
    for part in (part for run in runs if run.bar for part in run.bar.parts):
        labels.setdefault(part.color, {})[part.label] = None
    template = page_environment().get_template("runs.html.j2")
    return template.render(
        runs=runs,
        columns=[name for name in _COLUMNS if any(run.cells[name] not in ("", "–") for run in runs)],
        longest_ns=max((run.bar.whole_ns for run in runs if run.bar), default=0) or 1,
        legend={color: ", ".join(found) for color, found in labels.items()},
        notes=notes,
        folder=folder,
        written=when(time.time_ns()),
        compare=f"{COMMAND} compare",
        style=Markup("").join(map(page_part, ("page.css", "list.css"))),
        scripts=scripts,
        policy=with_scripts(scripts),
    )
