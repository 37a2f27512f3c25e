"""The first screen of a report: at most a dozen lines that say what was run, whether to believe it, what costs time,
where, and what to try; and a step as a bar, which the page has too. Knows only the Summary and its answer."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from rich.text import Text

from harness.analysis.labels import device_names, host_names
from harness.analysis.process.host_calls import HostCause
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Summary
from harness.analysis.summary.problem_texts import NOT_COMPLETED
from harness.common.display.format import cut
from harness.common.display.palette import COMMUNICATION, COMPUTE, IDLE, MEMORY
from harness.common.display.printable import printable
from harness.common.paths import COMMAND
from harness.common.run_folder.submission import edit_in
from harness.explain.answer import Diagnosis, answer
from harness.explain.commands import asked_words, in_lines
from harness.explain.findings import has_marked_steps
from harness.explain.job_time import is_large, short_words
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.device_causes import slowest
from harness.report.elements import OTHER, WINDOW, StepBar, StepBarPart
from harness.report.tables.table import WIDTH
from harness.run import TRACE_FOLDERS

_COST = HostCause.DATA.color  # idle time whose cause is not told
_MOST_CAUSES = 3  # in a bar
_EXPOSED = "exposed communication"
_COLORS = {"compute": COMPUTE, _EXPOSED: COMMUNICATION, "copies": MEMORY}
_FILLS = {COMPUTE: "█", COMMUNICATION: "▓", MEMORY: "▒", IDLE: "·"}  # losses: ░
_MOST_BLOCKS = 40
_LEAST = 0.005  # of a step: a smaller part belongs to the others
_MUCH_OF_IT = 0.1  # of a part's losses, from which a cause has a place of its own
_LABEL = 11  # characters of the words before a line
_MOST_LINES = 12
# The order in which lines are left out of a screen with too many, the largest first.
_BLANK_BELOW, _BLANK_ABOVE, _JOB, _ALSO, _FURTHER_LINES = 5, 4, 3, 2, 1
_FIXED = "\u00a0"  # a space at which no line is broken
_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|ns|min|h)\b|%)")  # the space between a number and its unit


def bar_of_answer(s: Summary) -> StepBar | None:
    """The mean step in parts; None: unknown. If the causes are withheld, as in a mystery, idle time is whole."""
    withheld = any(w.field == "findings" for w in s.quality.withheld)
    return (None if withheld else _of_replay(s)) or _of_devices(s) or _of_clock(s)


def _of_replay(s: Summary) -> StepBar | None:
    """What no finding explains, then the findings: each takes at most what is left of their common time."""
    replay, left = s.replay, s.replay.remainder if s.replay else None
    if replay is None or left is None or replay.unexplained_ns is None:
        return None
    times = {"compute": left.work_ns, _EXPOSED: left.communication_ns, "copies": left.copies_ns}
    saved_ns, losses, colors = max(replay.step_ns - replay.unexplained_ns, 0), dict[str, float](), dict[str, str]()
    for found in s.findings:
        own_ns = min(found.lost_ns, saved_ns - sum(losses.values()))
        entry = CAUSES.get(found.cause)
        label, color = (entry.short or entry.label, entry.color) if entry else (found.cause, _COST)
        if own_ns > _MUCH_OF_IT * saved_ns and len(losses) < _MOST_CAUSES:
            losses[label] = losses.get(label, 0) + own_ns
            colors[label] = color
    for label in [label for label in losses if label in times]:
        times[label] += round(losses.pop(label))
    parts = [StepBarPart(label, ns, _COLORS[label]) for label, ns in times.items()]
    parts += [StepBarPart(label, ns, colors[label]) for label, ns in losses.items()]
    return _bar("a step" if has_marked_steps(s) else WINDOW, replay.step_ns, parts)


def _of_devices(s: Summary) -> StepBar | None:
    """The devices' time, scaled to the mean step; what is not known is a part of the others."""
    window_ns = sum(d.window_ns for d in s.devices)
    if not window_ns:
        return None
    spread = s.steps.duration
    whole_ns = (s.steps.mean_ns or spread.median_ns) if spread else window_ns / len(s.devices)
    fields = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    shares = [sum(getattr(d, field) or 0 for d in s.devices) / window_ns for field in fields]
    labels = (_COLORS | {"idle": _COST}).items()
    parts = [StepBarPart(label, share * whole_ns, color) for (label, color), share in zip(labels, shares, strict=True)]
    return _bar(_device_unit(s), whole_ns, parts)


def _device_unit(s: Summary) -> str:
    """Of what the devices' mean time is: without steps, of the window; a replay has no single period."""
    if s.steps.duration is None:
        return WINDOW
    return "a period" if by_periodicity(s.steps.source) else "a step"


def _of_clock(s: Summary) -> StepBar | None:
    """The slowest rank's step by the training's own clock."""
    rank = slowest(s)
    if rank is None or not rank.median_step_ns:
        return None
    names = {"forward": COMPUTE, "backward": COMPUTE, "optimizer": COMPUTE, "data": HostCause.DATA.color}
    times = [(name, getattr(rank, f"median_{name}_ns") or 0, color) for name, color in names.items()]
    return _bar(
        "a step", max(rank.median_step_ns, sum(ns for _, ns, _ in times)), [StepBarPart(*each) for each in times]
    )


def _bar(what: str, whole_ns: float, parts: Iterable[StepBarPart]) -> StepBar:
    shown = [part for part in parts if part.ns >= _LEAST * whole_ns]
    other_ns = max(whole_ns - sum(part.ns for part in shown), 0)
    shown += [StepBarPart(OTHER, other_ns, IDLE)] if other_ns >= _LEAST * whole_ns or not shown else []
    return StepBar(what, sum(part.ns for part in shown), shown)


def first_screen(s: Summary, width: int = WIDTH, *, more: str = "", page: Path | None = None) -> Text:
    """Only commands and paths are wider than `width`. more: the command that shows all, also what has no room here.
    page: its file."""
    said, lines = answer(s), _Lines(min(width, WIDTH))
    lines.wrapped(heading(s), "bold", "  ")
    ended = [doubt for doubt in said.doubts if doubt.lower().startswith(NOT_COMPLETED)]
    lines.wrapped(" ".join(ended), "bold red", "  ")
    lines.wrapped(" ".join([*_edited(s), *(doubt for doubt in said.doubts if doubt not in ended)]), "yellow", "  ")
    lines.blank(_BLANK_ABOVE)
    for sentence in said.sentences:
        lines.wrapped(sentence, "bold" if sentence is said.sentences[0] else "", "")
    for i, where in enumerate(said.where):
        lines.labelled("" if i else "where:", where, optional=_FURTHER_LINES if i else 0)
    if (bar := bar_of_answer(s)) is not None:
        lines.bar(bar)
    _try(said, lines)
    if said.also:
        lines.labelled("also:", _kept_whole(said.also), optional=_ALSO)
    if s.job_time is not None and is_large(s.job_time):
        lines.labelled("job:", short_words(s.job_time), optional=_JOB)
    if more or page:
        lines.blank(_BLANK_BELOW)
    if page is not None:
        lines.labelled("page:", str(page), f"dim link {page.absolute().as_uri()}", whole=True)
    if more:
        lines.labelled("more:", more, "dim", whole=True)
    return Text("\n").join([*lines.fitted(), Text("")])


def _try(said: Diagnosis, lines: _Lines) -> None:
    """The command and the step that it predicts; without a command what to change."""
    attempt = said.attempt
    if attempt is None:
        return
    if attempt.command is None:
        lines.labelled("try:", f"{attempt.text}{f': {attempt.predicted}' if attempt.predicted else ''}", "green")
        return
    first, *others = in_lines(attempt.command, lines.width - _LABEL)
    lines.labelled("try:", first.strip(), "bold green", whole=True)
    for line in others:
        lines.add(Text(f"{' ' * _LABEL}{line}", "bold green"))
    if attempt.predicted and not others and len(first) + len(attempt.predicted) + _LABEL < lines.width:
        lines.rows[-1].text.append(f"   {attempt.predicted}")
    elif attempt.predicted:
        lines.labelled("", attempt.predicted)


class _Row(NamedTuple):
    """A line of the screen. optional: the largest is left out first, if there are too many lines; 0: never."""

    text: Text
    optional: int


class _Lines:
    def __init__(self, width: int) -> None:
        self.width, self.rows = width, list[_Row]()

    def add(self, text: Text, optional: int = 0) -> None:
        self.rows.append(_Row(text, optional))

    def fitted(self) -> list[Text]:
        """At most a dozen lines, or those that are never left out."""
        rows = self.rows
        for least in sorted({row.optional for row in rows if row.optional}, reverse=True):
            if len(rows) > _MOST_LINES:
                rows = [row for row in rows if row.optional != least]
        return [row.text for row in rows]

    def blank(self, optional: int) -> None:
        self.add(Text(""), optional)

    def wrapped(self, text: str, style: str, indent: str) -> None:
        for row in _broken(printable(text), self.width, indent):
            self.add(Text(row, style))

    def labelled(self, word: str, text: str, style: str = "", *, whole: bool = False, optional: int = 0) -> None:
        for i, row in enumerate([text] if whole else _broken(text, self.width - _LABEL)):
            start = f"  {word}" if i == 0 else ""
            self.add(Text.assemble((start.ljust(_LABEL), "dim"), (printable(row), style)), optional)

    def bar(self, bar: StepBar) -> None:
        """The parts with blocks to scale, in one line if it fits."""
        told, count = bar.told, len(bar.parts)
        room = self.width - _LABEL - sum(map(len, told)) - count - 3 * (count - 1) - 2  # which rounding may add
        blocks = min(room, _MOST_BLOCKS) if room >= 3 * count else self.width // 3
        row = Text.assemble((f"  {bar.what}".ljust(_LABEL), "dim"))
        for part, words, share in zip(bar.parts, told, bar.shares, strict=True):
            drawn = _FILLS.get(part.color, "░") * max(round(share * blocks), 1)
            used = len(row) + len(drawn) + len(words) + 4
            if used > self.width and len(row) > _LABEL:
                self.add(row)
                row = Text(" " * _LABEL)
            elif len(row) > _LABEL:
                row.append(" │ ", "dim")
            row.append(drawn, part.color)
            row.append(f" {words}")
        self.add(row)


def _kept_whole(also: str) -> str:
    """Smaller losses, each to be in one line with its size."""
    return " · ".join(one.replace(" ", _FIXED) for one in also.split(" · "))


def _broken(text: str, width: int, indent: str = "") -> list[str]:
    """A text in lines; a number and its unit stay in one."""
    rows = textwrap.wrap(_UNIT.sub(_FIXED, text), width, subsequent_indent=indent, break_on_hyphens=False)
    return [row.replace(_FIXED, " ") for row in rows]


def heading(s: Summary) -> str:
    """The run and its flags, or the traces; and on what it ran."""
    run = s.run or {}
    files = files_of(s)
    size = f"{s.world_size or len(s.ranks)} ranks" if (s.world_size or len(s.ranks)) > 1 else ""
    facts = [size, device_names(s), s.backend or ""]
    if run.get("job_id"):
        name = "   ".join(filter(None, (str(run["job_id"]), asked_words(s))))
    else:
        tools = ", ".join(sorted({x.tool for x in s.sources}))
        name = place_of(s)
        name = name if len(name) < WIDTH // 2 else f"…{name[1 - WIDTH // 2 :]}"  # the end of a path says most
        facts = [f"{len(files)} trace{'s' * (len(files) != 1)} ({tools})", host_names(s), *facts]
    return " · ".join([cut(printable(name), 2 * WIDTH), *filter(None, facts)])


def files_of(s: Summary) -> list[str]:
    return sorted({x.path for x in s.sources})


def place_of(s: Summary) -> str:
    """What the summary is about: a file or a folder; of a run its directory, without a trace its id."""
    files = files_of(s)
    if not files:
        return printable(str((s.run or {}).get("job_id") or "run"))
    folder = PurePath(files[0]).parent
    if folder.name in TRACE_FOLDERS:
        return printable(str(folder.parent))
    return printable(files[0] if len(files) == 1 else str(folder))


def _edited(s: Summary) -> list[str]:
    edit = edit_in(s.run)
    return [f"{edit.sentence}."] if edit else []


def whole_report(what: Sequence[str], s: Summary) -> str:
    """The command that shows every table of these runs or traces; a run by its id, which stays the same."""
    run = (s.run or {}).get("job_id") if len(what) == 1 else None
    return f"{COMMAND} report {shlex.join([str(run)] if run else what)} --full"
