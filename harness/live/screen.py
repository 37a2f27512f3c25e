"""One run on one screen, as lines of a given width and number. Knows no terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from harness.common.display.format import amount, cut, duration, percent, span
from harness.common.display.printable import printable
from harness.common.display.text import clock, how_many, sparkline
from harness.heartbeats.model import NS, Live, RankHistory, RunProgress
from harness.heartbeats.time_limit import Note
from harness.live.view import RunView

_SILENT = "bright_black"
QUIET_S = 5.0  # a shorter time without a sign of life is not shown
_MOST_NODE = 24  # characters
LAST_STEPS = 40  # in the sparkline; of a narrow screen half of it
_BAR = 24  # characters of the bar of progress
_LEAST_ROWS = 5  # of the table, where findings would take its place
_LEAST_FINDINGS = 4  # lines of findings, where the table would take their place
_STATES = {"running": "bold green", "queued": "bold yellow", "completed": "bold green", "unknown": "bold yellow"}


class ScreenColumn(NamedTuple):
    """A column: its heading, its cell, and the least width of a screen that has it."""

    head: str
    cell: Callable[[RankHistory, Live], str]
    least_width: int = 0
    right: bool = True
    takes_rest: bool = False


def _phase(rank: RankHistory, _live: Live) -> str:
    if rank.gone is not None:
        return "ended" if rank.gone.ended else "gone"
    return "starts" if rank.beat is None else rank.phase or "–"


def _quiet(rank: RankHistory, live: Live) -> str:
    """How long it is quiet, makes no progress, or its node does not report."""
    if rank.gone is not None:
        return ""
    if live.is_silent(live.nodes[rank.node]):
        return f"no report {span(live.nodes[rank.node].age_s(live.now_ns))}"
    if rank.quiet_s() > QUIET_S:
        return span(rank.quiet_s())
    return f"no progress {span(rank.idle_s())}" if rank.is_idle() else ""


def _us(us: float | None) -> str:
    return duration(None if us is None else us * 1e3)


COLUMNS = [
    ScreenColumn("rank", lambda rank, _: str(rank.rank)),
    ScreenColumn("node", lambda rank, _: cut(printable(rank.host or rank.node), _MOST_NODE), 75, right=False),
    ScreenColumn("step", lambda rank, _: "–" if rank.step is None else f"{rank.step:,}"),
    ScreenColumn("own time", lambda rank, _: _us(rank.recent_own_us)),
    ScreenColumn("step time", lambda rank, _: _us(rank.recent_us), 70),
    ScreenColumn("phase", _phase, right=False),
    ScreenColumn("memory", lambda rank, _: amount(rank.beat.memory_mib << 20) if rank.beat else "–", 90),
    ScreenColumn("use", lambda rank, _: _percent(rank), 90),
    ScreenColumn(
        "place", lambda rank, _: rank.code_line.short if rank.code_line else "–", right=False, takes_rest=True
    ),
    ScreenColumn("quiet", _quiet),
]


def _percent(rank: RankHistory) -> str:
    return f"{rank.beat.use_percent} %" if rank.beat and rank.beat.use_percent is not None else "–"


def in_order(live: Live) -> list[RankHistory]:
    """All ranks: gone without an end, then quiet, then without progress, then by the time of their steps."""
    return sorted(
        live.slowest_first(),
        key=lambda rank: (rank.gone is None or rank.ended, rank.quiet_s() <= QUIET_S, not rank.is_idle()),
    )


def table_of(rank_histories: list[RankHistory], live: Live, width: int) -> Table:
    """A line for each of these ranks, as wide as the screen."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="dim")
    columns = [column for column in COLUMNS if width >= column.least_width]
    cells = [[_cell(column, rank, live) for column in columns] for rank in rank_histories]
    for number, column in enumerate(columns):
        longest = max(len(column.head), *(len(row[number]) for row in cells))
        table.add_column(
            column.head,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if column.takes_rest else None,
            min_width=None if column.takes_rest else longest,
        )
    for rank, row in zip(rank_histories, cells, strict=True):
        table.add_row(*row, style=_style(rank, live))
    return table


def _cell(column: ScreenColumn, rank: RankHistory, live: Live) -> Text:
    is_quiet = column is COLUMNS[-1] and rank.gone is None and _quiet(rank, live)
    return Text(printable(column.cell(rank, live)), "yellow" if is_quiet else "")


def _style(rank: RankHistory, live: Live) -> str:
    if rank.gone is not None:
        return "dim" if rank.ended else "red"
    if live.is_silent(live.nodes[rank.node]):
        return _SILENT
    return "yellow" if _quiet(rank, live) else ""


class ScreenLines:
    """Lines of a width, which are counted while they are made."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = width
        self.lines: list[str] = []
        self._console = Console(
            file=io.StringIO(), width=width, force_terminal=colour, no_color=None if colour else True, highlight=False,
            emoji=False, markup=False, color_system="standard" if colour else None, legacy_windows=False,
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


def screen(view: RunView, width: int, height: int, colour: bool = True) -> list[str]:
    """The screen's lines, at most `height` of them."""
    page = ScreenLines(width, colour)
    page.add(*_header(view, width), *_progress(view, width))
    if view.missing:
        page.add(*_wrapped(view.missing, width, "yellow"))
    page.add(*_findings(view.notes, width, max(_LEAST_FINDINGS, height - len(page.lines) - _LEAST_ROWS)))
    _ranks(page, view.live, height - len(page.lines) - 1)
    del page.lines[height:]
    return page.lines


def _header(view: RunView, width: int) -> list[Text]:
    told, now_ns = view.state, view.now_ns
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


def _times(view: RunView) -> Iterable[str]:
    told, now_ns = view.state, view.now_ns
    if told.state == "queued" and told.starts_ns is not None:
        yield f"expected to begin {clock(told.starts_ns, now_ns)}"
        yield f"in {span((told.starts_ns - now_ns) / NS)}"
    if told.final or told.state == "queued":
        return
    if told.began_ns is not None:
        yield f"runs for {span((now_ns - told.began_ns) / NS)}"
    if told.deadline_ns is not None and told.deadline_ns > now_ns:
        yield f"{span((told.deadline_ns - now_ns) / NS)} to the time limit"


def _progress(view: RunView, width: int) -> list[Text]:
    progress = view.progress
    if progress.step is None:
        return []
    parts, bar = [f"step {progress.step:,}"], Text()
    if progress.steps:
        share = min(1.0, progress.step / progress.steps)
        done = round(share * _BAR)
        bar = Text("━" * done, style="green") + Text("─" * (_BAR - done) + "  ", style="dim")
        parts = [f"step {progress.step:,} of {progress.steps:,}", percent(share)]
    if progress.remaining_s is not None and not view.state.final:
        parts.append(f"{span(progress.remaining_s)} remain")
    if width < _BAR + 46:
        bar = Text()
    count = LAST_STEPS if width >= 100 else LAST_STEPS // 2
    speeds = list(_speeds(progress, view.live, count, view.state.final))
    return [bar + Text("   ".join(parts), "bold"), *_flowing(speeds, "   ", width)]


def _flowing(texts: Sequence[str], between: str, width: int, style: str = "") -> list[Text]:
    """Parts beside each other, on as many lines as they need."""
    lines: list[Text] = []
    for part in map(safe, texts):
        if lines and lines[-1].cell_len + len(between) + part.cell_len <= width:
            lines[-1].append(between).append_text(part)
        else:
            lines.append(part)
    return [Text(line.plain, style) for line in lines]


def _speeds(progress: RunProgress, live: Live, count: int, final: bool) -> Iterable[str]:
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
    history = next((rank.history for rank in ranks if len(rank.history)), None)
    return [] if history is None else [float(us) for us in history.us[-count:]]


def _findings(notes: Sequence[Note], width: int, room: int) -> list[Text]:
    """The sentences that there is room for, with their evidence if there is room for all of it."""
    full = [line for note in notes for line in (Text(), *_note(note, width))]
    short = [Text(), *(line for note in notes for line in _sentence(note, width))]
    return full if len(full) <= room else short[:room]


def _note(note: Note, width: int) -> list[Text]:
    lines = [*_sentence(note, width), *_wrapped(note.evidence, width, "", "  ")]
    return [*lines, safe(f"  next: {note.command}", "cyan")] if note.command else lines


def _sentence(note: Note, width: int) -> list[Text]:
    return _wrapped(note.sentence, width, "bold yellow", "● ")


def _wrapped(text: str, width: int, style: str, first: str = "") -> list[Text]:
    """A sentence in lines of the width, the first of which begins with `first`; the others are indented as much."""
    console = Console(width=width, file=io.StringIO())
    lines = safe(text, style).wrap(console, width - len(first), no_wrap=False)
    return [Text(first if number == 0 else " " * len(first), style) + line for number, line in enumerate(lines)]


def _ranks(page: ScreenLines, live: Live, room: int) -> None:
    ordered = in_order(live)
    rows = min(len(ordered), max(0, room - 1))
    if rows < len(ordered):
        rows = max(0, rows - 1)
    if not rows:
        return
    page.add(Text(), table_of(ordered[:rows], live, page.width))
    if rows < len(ordered):
        page.add(Text(f"and {len(ordered) - rows:,} more", style="dim"))


def as_line(view: RunView) -> str:
    """One line: when, which run, its state, how far, how fast, and the most urgent finding."""
    progress = view.progress
    parts = [clock(view.now_ns, view.now_ns), view.job_id, view.state.state]
    if progress.step is not None:
        parts.append(f"step {progress.step:,}" + (f" of {progress.steps:,}" if progress.steps else ""))
    if progress.step_ns is not None:
        parts.append(f"{duration(progress.step_ns)} a step")
    if progress.samples_per_s:
        parts.append(amount(progress.samples_per_s, "samples/s"))
    if progress.remaining_s is not None and not view.state.final:
        parts.append(f"{span(progress.remaining_s)} remain")
    said = [view.first_sentence] if view.first_sentence else []
    return printable("  ".join([*parts, *said]))


def as_json(view: RunView) -> str:
    """One JSON object on one line: the run, its ranks, nodes and findings."""
    return json.dumps(_run(view), separators=(",", ":"))


def _run(view: RunView) -> dict[str, Any]:
    told, live = view.state, view.live
    return {
        "unix_ns": view.now_ns,
        "job_id": view.job_id,
        "name": view.run.name,
        "path": str(view.run.path),
        "user": view.user,
        "state": told.state,
        "reason": told.why,
        "expected_start_unix_ns": told.starts_ns,
        "started_unix_ns": told.began_ns,
        "deadline_unix_ns": told.deadline_ns,
        "heartbeats": live.there,
        "missing": view.missing,
        "progress": view.progress._asdict(),
        "findings": [note._asdict() for note in view.notes],
        "nodes": [
            {"node": node.name, "host": node.host, "age_s": round(node.age_s(live.now_ns), 3), "ended": node.ended}
            for node in live.nodes.values()
        ],
        "ranks": [_rank(rank) for rank in live.slowest_first()],
    }


def _rank(rank: RankHistory) -> dict[str, Any]:
    beat = rank.beat
    return {
        **{name: getattr(rank, name) for name in ("rank", "node", "host", "pid", "step", "steps", "phase")},
        "idle_s": rank.idle_s(),
        "quiet_s": rank.quiet_s(),
        "place": rank.code_line._asdict() if rank.code_line else None,
        **{name: getattr(beat, name) if beat else None for name in ("memory_mib", "use_percent", "loss")},
        "own_ns": _ns(rank.recent_own_us),
        "step_ns": _ns(rank.recent_us),
        "gone": rank.gone._asdict() if rank.gone else None,
    }


def _ns(us: float | None) -> int | None:
    return None if us is None else round(us * 1e3)
