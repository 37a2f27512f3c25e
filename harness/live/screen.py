"""One run on one screen, as lines of a given width and number. Knows no terminal and no key."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from harness.common.printable import printable
from harness.format.format import amount, duration, percent
from harness.live.model import NS, Live, Progress
from harness.live.notes import Note
from harness.live.rank_table import in_order, table_of
from harness.live.text import clock, how_many, span, sparkline
from harness.live.view import View

LAST_STEPS = 40  # in the sparkline; of a narrow screen half of it
_BAR = 24  # characters of the bar of progress
_LEAST_ROWS = 5  # of the table, where findings would take its place
_LEAST_FINDINGS = 4  # lines of findings, where the table would take their place
_MOST_MESSAGE = 3  # lines
_STATES = {
    "running": "bold green",
    "queued": "bold yellow",
    "completed": "bold green",
    "unknown": "bold yellow",
}
KEYS = "c capture   l logs   x cancel   q quit"


class Shown(NamedTuple):
    """What a user has asked for. logs: the last lines of the output in place of the ranks; message: what a command that
    runs in the background says, or a question; keys: whether there are keys."""

    logs: Sequence[str] | None = None
    message: str = ""
    keys: bool = True


class Page:
    """Lines of a width, which are counted while they are made."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = width
        self.lines: list[str] = []
        self._console = Console(
            file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, highlight=False, emoji=False,
            markup=False, color_system="standard" if colour else None, legacy_windows=False,
        )  # fmt: skip

    def add(self, *parts: RenderableType) -> None:
        """Add parts, each cut to the width."""
        for part in parts:
            if isinstance(part, Text):
                part.truncate(self.width, overflow="ellipsis")
                part.no_wrap = True
            with self._console.capture() as captured:
                self._console.print(part, end="")
            self.lines += captured.get().rstrip("\n").split("\n")


def safe(text: str, style: str = "") -> Text:
    """A text that others wrote, on one line."""
    return Text(printable(text), style=style)


def screen(view: View, width: int, height: int, shown: Shown, colour: bool = True) -> list[str]:
    """The screen's lines, at most `height` of them."""
    page = Page(width, colour)
    page.add(*_header(view, width), *_progress(view, width))
    message = _wrapped(shown.message, width, "bold")[:_MOST_MESSAGE] if shown.message else []
    footer = [*message, *[Text(KEYS, style="dim")] * shown.keys]
    room = height - len(page.lines) - len(footer)
    if view.missing:
        page.add(*_wrapped(view.missing, width, "yellow"))
    page.add(*_findings(view.notes, width, max(_LEAST_FINDINGS, room - _LEAST_ROWS)))
    room = height - len(page.lines) - len(footer) - 1
    if shown.logs is not None:
        page.add(Text())
        page.add(*(safe(line) for line in shown.logs[-max(1, room) :]))
    elif view.live.ranks:
        _ranks(page, view.live, room)
    del page.lines[max(0, height - len(footer)) :]
    page.add(*footer)
    return page.lines


def _header(view: View, width: int) -> list[Text]:
    told, now_ns = view.told, view.now_ns
    state, at = f"  {told.state}", f"  {clock(now_ns, now_ns)}"
    first = safe(view.run.name, "bold")
    first.truncate(max(8, width - len(state) - len(at)), overflow="ellipsis")
    first.append(state, style=_STATES.get(told.state, "bold red"))
    first.append(" " * max(0, width - first.cell_len - len(at)) + at, style="dim")
    facts = [view.job_id, view.user]
    if view.live.there:
        facts += [how_many(len(view.live.nodes), "node"), how_many(len(view.live.ranks), "rank")]
    facts += list(_times(view))
    lines = [first, *_flowing(list(filter(None, facts)), " · ", width, "dim")]
    if told.why:
        lines.append(safe(told.why, "yellow"))
    return lines


def _times(view: View) -> Iterable[str]:
    told, now_ns = view.told, view.now_ns
    if told.state == "queued" and told.starts_ns is not None:
        yield f"expected to begin {clock(told.starts_ns, now_ns)}"
        yield f"in {span((told.starts_ns - now_ns) / NS)}"
    if told.place:
        yield told.place
    if told.final or told.state == "queued":
        return
    if told.began_ns is not None:
        yield f"runs for {span((now_ns - told.began_ns) / NS)}"
    if told.deadline_ns is not None and told.deadline_ns > now_ns:
        yield f"{span((told.deadline_ns - now_ns) / NS)} to the time limit"


def _progress(view: View, width: int) -> list[Text]:
    progress = view.progress
    if progress.step is None:
        return []
    parts, bar = [f"step {progress.step:,}"], Text()
    if progress.steps:
        share = min(1.0, progress.step / progress.steps)
        done = round(share * _BAR)
        bar = Text("━" * done, style="green") + Text("─" * (_BAR - done) + "  ", style="dim")
        parts = [f"step {progress.step:,} of {progress.steps:,}", percent(share)]
    if progress.remaining_s is not None and not view.told.final:
        parts.append(f"{span(progress.remaining_s)} remain")
    if width < _BAR + 46:
        bar = Text()
    count = LAST_STEPS if width >= 100 else LAST_STEPS // 2
    speeds = list(_speeds(progress, view.live, count, view.told.final))
    return [bar + Text("   ".join(parts), "bold"), *_flowing(speeds, "   ", width)]


def _flowing(parts: Sequence[str], between: str, width: int, style: str = "") -> list[Text]:
    """Parts beside each other, on as many lines as they need."""
    lines: list[Text] = []
    for part in map(safe, parts):
        if lines and lines[-1].cell_len + len(between) + part.cell_len <= width:
            lines[-1].append(between).append_text(part)
        else:
            lines.append(part)
    return [Text(line.plain, style) for line in lines]


def _speeds(progress: Progress, live: Live, count: int, final: bool) -> Iterable[str]:
    if progress.step_ns is not None:
        yield f"{duration(progress.step_ns)} a step {sparkline(last_steps_us(live, count))}".rstrip()
    if final:
        return
    if progress.samples_per_s:
        yield amount(progress.samples_per_s, "samples/s")
    if progress.tokens_per_s:
        yield amount(progress.tokens_per_s, "tokens/s")


def last_steps_us(live: Live, count: int) -> list[float]:
    """The last so many steps of the first rank that has any."""
    ranks = (live.ranks[number] for number in sorted(live.ranks))
    history = next((rank.history for rank in ranks if rank.history.count), None)
    return [] if history is None else [float(us) for us in history.us[-count:]]


def _findings(notes: Sequence[Note], width: int, room: int) -> list[Text]:
    """The sentences that there is room for, with their evidence if there is room for all of it."""
    if not notes:
        return []
    full = [line for note in notes for line in (Text(), *_note(note, width))]
    if len(full) <= room:
        return full
    lines: list[Text] = [Text()]
    for number, note in enumerate(notes):
        sentence = _sentence(note, width)
        last = number == len(notes) - 1
        if len(lines) + len(sentence) + (not last) > room:
            return [*lines, Text(f"and {how_many(len(notes) - number, 'more finding')}", style="dim")][
                : max(1, room)
            ]
        lines += sentence
    return lines


def _note(note: Note, width: int) -> list[Text]:
    lines = [*_sentence(note, width), *_wrapped(note.evidence, width, "", "  ")]
    return [*lines, safe(f"  next: {note.command}", "cyan")] if note.command else lines


def _sentence(note: Note, width: int) -> list[Text]:
    return _wrapped(note.sentence, width, "bold yellow", "● ")


def _wrapped(text: str, width: int, style: str, first: str = "") -> list[Text]:
    """A sentence in lines of the width, the first of which begins with `first`; the others are indented as much."""
    console = Console(width=width, file=io.StringIO())
    lines = safe(text, style).wrap(console, width - len(first), no_wrap=False)
    return [
        Text(first if number == 0 else " " * len(first), style) + line for number, line in enumerate(lines)
    ]


def _ranks(page: Page, live: Live, room: int) -> None:
    ordered = in_order(live)
    rows = min(len(ordered), max(0, room - 1))
    if rows < len(ordered):
        rows = max(0, rows - 1)
    if not rows:
        return
    page.add(Text(), table_of(ordered[:rows], live, page.width))
    if rows < len(ordered):
        page.add(Text(f"and {len(ordered) - rows:,} more", style="dim"))
