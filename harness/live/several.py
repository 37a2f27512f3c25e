"""Several runs on one screen, a line for each: as of a class, a line for each student's run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from harness.common.printable import printable
from harness.format.format import cut, duration
from harness.live.screen import Page, Shown, safe
from harness.live.text import clock, how_many, span
from harness.live.view import View

_STATES = {"running": "green", "completed": "dim", "queued": "yellow", "unknown": "yellow"}
_KEYS = "q quit"


def several(views: Sequence[View], width: int, height: int, shown: Shown, colour: bool = True) -> list[str]:
    """The screen's lines, at most `height` of them."""
    page = Page(width, colour)
    states = Counter(view.told.state for view in views)
    at = clock(views[0].now_ns, views[0].now_ns) if views else ""
    counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
    page.add(Text(f"{how_many(len(views), 'run')}: {counted}  {at}", style="bold"), Text())
    footer = [Text(_KEYS, style="dim")] * shown.keys
    room = height - len(page.lines) - len(footer) - 1
    rows = len(views) if len(views) <= room else max(0, room - 1)
    if rows:
        page.add(_table(views[:rows], width))
    if rows < len(views):
        page.add(Text(f"and {len(views) - rows:,} more", style="dim"))
    page.add(*footer)
    return page.lines


def _table(views: Sequence[View], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="dim")
    heads = ["run", "user", "state", "step", "step time", "remains"]
    for head in heads:
        right = head in ("step", "step time", "remains")
        table.add_column(head, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    for view in views:
        cells = [Text(printable(cell)) for cell in _cells(view)]
        cells[2].stylize(_STATES.get(view.told.state, "red"))
        table.add_row(*cells, safe(view.first_sentence, "yellow"))
    return table


def _cells(view: View) -> list[str]:
    progress, last = view.progress, view.last
    step, step_ns = progress.step, progress.step_ns
    if step is None and last is not None:
        step, step_ns = last.step, last.step_ns
    of = f" of {progress.steps:,}" if progress.steps else ""
    remains = "" if view.told.final else span(progress.remaining_s)
    return [
        cut(view.job_id, 20),
        cut(view.user, 16),
        view.told.state,
        "–" if step is None else f"{step:,}{of}",
        duration(step_ns),
        remains,
    ]
