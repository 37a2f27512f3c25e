"""Several runs on one screen, a line for each: as of a class, a line for each student's run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from harness.common.format import cut, duration
from harness.common.printable import printable
from harness.common.text import clock, how_many, span
from harness.live.screen import ScreenLines, ScreenOptions, safe
from harness.live.view import RunView

_STATES = {"running": "green", "completed": "dim", "queued": "yellow", "unknown": "yellow"}
_HEADS = {"run": 0, "user": 50, "state": 0, "step": 0, "step time": 70, "remains": 60}  # and the least width for it
_BESIDE = 100  # characters of a screen on which a run's sentence is beside it; on a narrower one it is below
_WITH_PLACE = 80  # characters of a screen that has room for a run's place in the queue
_KEYS = "q quit"


def several(views: Sequence[RunView], width: int, height: int, shown: ScreenOptions, colour: bool = True) -> list[str]:
    """The screen's lines, at most `height` of them."""
    page = ScreenLines(width, colour)
    states = Counter(view.state.state for view in views)
    at = clock(views[0].now_ns, views[0].now_ns) if views else ""
    counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
    page.add(Text(f"{how_many(len(views), 'run')}: {counted}  {at}", style="bold"), Text())
    footer = [Text(_KEYS, style="dim")] * shown.keys
    room = height - len(page.lines) - len(footer) - 1
    rows = _fitting(views, width, room)
    if rows:
        page.add(_table(views[:rows], width))
        if width < _BESIDE:
            page.lines[-rows:] = _with_sentences(page.lines[-rows:], views, width, colour)
    if rows < len(views):
        page.add(Text(f"and {len(views) - rows:,} more", style="dim"))
    page.add(*footer)
    return page.lines


def _fitting(views: Sequence[RunView], width: int, room: int) -> int:
    """How many runs there is room for; if not for all, a line says how many more there are."""
    heights = [1 + (width < _BESIDE and bool(_sentence(view))) for view in views]
    if sum(heights) <= room:
        return len(views)
    return next((n for n in range(len(views), 0, -1) if sum(heights[:n]) < room), 0)


def _with_sentences(lines: Sequence[str], views: Sequence[RunView], width: int, colour: bool) -> list[str]:
    page = ScreenLines(width, colour)
    for line, view in zip(lines, views, strict=False):
        page.lines.append(line)
        if sentence := _sentence(view):
            page.add(Text("  ") + safe(sentence, "yellow"))
    return page.lines


def _table(views: Sequence[RunView], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=width >= _BESIDE, header_style="dim")
    heads = [head for head, least in _HEADS.items() if width >= least]
    for head in heads:
        right = head in ("step", "step time", "remains")
        table.add_column(head, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    if width >= _BESIDE:
        table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    for view in views:
        cells = _cells(view, width)
        styles = {"state": _STATES.get(view.state.state, "red")}
        row = [Text(printable(cells[head]), styles.get(head, "")) for head in heads]
        table.add_row(*row, *[safe(_sentence(view), "yellow")] * (width >= _BESIDE))
    return table


def _has_reason(view: RunView) -> bool:
    """Whether it waits for a reason that is one word, as Slurm's Priority and Resources."""
    return view.state.state == "queued" and bool(view.state.why) and " " not in view.state.why


def _sentence(view: RunView) -> str:
    return "" if _has_reason(view) else view.first_sentence


def _cells(view: RunView, width: int) -> dict[str, str]:
    progress, last = view.progress, view.last
    step, step_ns = progress.step, progress.step_ns
    if step is None and last is not None:
        step, step_ns = last.step, last.step_ns
    of = f" of {progress.steps:,}" if progress.steps else ""
    waits = [view.state.why * _has_reason(view), view.state.short_place * (width >= _WITH_PLACE)]
    why_queued = ", ".join(filter(None, waits))
    return {
        "run": cut(view.job_id, 20),
        "user": cut(view.user, 16),
        "state": view.state.state + f" ({why_queued})" * bool(why_queued),
        "step": "–" if step is None else f"{step:,}{of}",
        "step time": duration(step_ns),
        "remains": "" if view.state.final else span(progress.remaining_s),
    }
