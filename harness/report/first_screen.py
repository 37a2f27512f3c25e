"""The first screen of a report: a dozen lines, more where more causes are told, that say what was run, whether to
believe it, what costs time, where, and what to try; and a step as a bar, which the page has too. Knows only the Summary
and its answer."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import NamedTuple

from rich.text import Text

from harness.analysis.labels import are_cpus, cause_word, device_names, host_names
from harness.analysis.peers import of_peers
from harness.analysis.process.host_calls import HostCause
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Summary
from harness.analysis.summary.problem_texts import DEVICE_MISSING, NOT_COMPLETED
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
from harness.replay.attribute.host_causes import OF_IDLE_TIME
from harness.replay.attribute.suspect import Cause
from harness.report.elements import OTHER, WINDOW, StepBar, StepBarPart
from harness.report.tables.table import WIDTH
from harness.run import TRACE_FOLDERS

_LEAST_CAUSE = 0.03  # of a step, from which a cause of idle time is a part of its own
_EXPOSED = "exposed communication"
_SPLIT = (  # the parts of the devices' time that are not idle
    ("compute", "compute_ns", COMPUTE),
    (_EXPOSED, "exposed_communication_ns", COMMUNICATION),
    ("copies", "exposed_memory_ns", MEMORY),
)
_IDLE_COLORS = {cause.label: cause.color for cause in HostCause}
_FILLS = {COMPUTE: "█", COMMUNICATION: "▓", MEMORY: "▒"}  # idle time: ·
_AVOIDABLE = "░"
_MOST_BLOCKS = 40
_LEAST = 0.005  # of a step: a smaller part belongs to the others
_LABEL = 11  # characters of the words before a line
_MOST_LINES = 12
# The order in which words are left out of a screen with too many lines, the largest first; a cause never is.
_BLANK_BELOW, _BLANK_ABOVE, _HEADING, _FURTHER_LINES, _DOUBT = 5, 4, 3, 2, 1
_FIXED = "\u00a0"  # a space at which no line is broken
_UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|ns|min|h)\b|%)")  # the space between a number and its unit


def bar_of_answer(s: Summary) -> StepBar | None:
    """The mean step in parts; None: unknown."""
    return _of_devices(of_peers(s)[0]) or _of_clock(s)


def _of_devices(s: Summary) -> StepBar | None:
    """The devices' time, scaled to the mean step, as the section below and `--full` have its shares: idle time by its
    largest causes, if they are not withheld, as in a mystery. What is not known is a part of the others. None: no
    device's work was recorded."""
    window_ns = sum(d.window_ns for d in s.devices)
    if not window_ns or DEVICE_MISSING in (problem.what for problem in s.quality.problems):
        return None
    unit, whole_ns = _unit(s, window_ns / len(s.devices))
    idle_ns = {c.cause: c.duration_ns for c in s.idle_causes if c.cause != HostCause.OTHER.label}
    if any(w.field == "findings" for w in s.quality.withheld) or not s.idle_causes:
        idle_ns = {"": sum(d.idle_ns or 0 for d in s.devices)}
    largest = [cause for cause, ns in idle_ns.items() if ns >= _LEAST_CAUSE * window_ns]
    split = [(label, sum(getattr(d, field) or 0 for d in s.devices), color) for label, field, color in _SPLIT]
    split += [(_idle_label(s, cause), idle_ns[cause], _IDLE_COLORS.get(cause, IDLE)) for cause in largest]
    avoidable = _avoidable(s, largest)
    loading = avoidable[_idle_label(s, HostCause.DATA.label)]
    if are_cpus(s.devices) and loading:  # operators of loading are no idle time
        avoidable["compute"] += max(loading - whole_ns / window_ns * idle_ns.get(HostCause.DATA.label, 0), 0)
    return _bar(
        unit,
        whole_ns,
        (StepBarPart(label, whole_ns / window_ns * ns, color, avoidable[label]) for label, ns, color in split),
    )


def _unit(s: Summary, window_ns: float) -> tuple[str, float]:
    """Of what the bar is, and how long that takes: without marked steps, as a replay has them, of the window."""
    spread, of_window = s.steps.duration, "a period" if by_periodicity(s.steps.source) and not s.replay else WINDOW
    mean_ns = s.replay.step_ns if s.replay else (s.steps.mean_ns or spread.median_ns) if spread else window_ns
    return "a step" if has_marked_steps(s) else of_window, mean_ns


def _idle_label(s: Summary, cause: str) -> str:
    return f"idle: {cause_word(cause, are_cpus(s.devices))}" if cause else "idle"


def _avoidable(s: Summary, idle_causes: Sequence[str]) -> dict[str, float]:
    """By part what the losses cost that are a part of it. A loss of some ranks alone is none: the others wait."""
    found = defaultdict[str, float](float)
    for lost in s.findings:
        entry = CAUSES.get(lost.cause)
        if entry is None or len(lost.ranks) < len(s.ranks):
            continue
        if entry.of_host:
            cause = next((cause for cause in idle_causes if OF_IDLE_TIME.get(cause) == entry.cause), None)
            label = "" if cause is None else _idle_label(s, cause)
        else:
            label = _EXPOSED if entry.of_messages else "copies" if entry.cause is Cause.COPIES else "compute"
        found[label] += lost.lost_ns
    return found


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
    """Only commands and paths are wider than `width`. more: the command that shows all, also words that have no room
    here. page: its file."""
    said, lines = answer(s), _Lines(min(width, WIDTH))
    lines.wrapped(heading(s), "bold", "  ", _HEADING)
    ended = [doubt for doubt in said.doubts if doubt.lower().startswith(NOT_COMPLETED)]
    lines.wrapped(" ".join(ended), "bold red", "  ")
    doubts = [*_edited(s), *(doubt for doubt in said.doubts if doubt not in ended)]
    lines.wrapped(" ".join(doubts), "yellow", "  ", _DOUBT)
    lines.blank(_BLANK_ABOVE)
    for sentence in said.sentences:
        lines.wrapped(sentence, "bold" if sentence is said.sentences[0] else "", "")
    for i, where in enumerate(said.where):
        lines.labelled("" if i else "where:", where, optional=_FURTHER_LINES if i else 0)
    if (bar := bar_of_answer(s)) is not None:
        lines.bar(bar)
    _try(said, lines)
    if said.also:
        lines.labelled("also:", _kept_whole(said.also))
    if s.job_time is not None and is_large(s.job_time):
        lines.labelled("job:", short_words(s.job_time))
    if more or page:
        lines.blank(_BLANK_BELOW)
    if page is not None:
        lines.labelled("page:", str(page), f"dim link {page.absolute().as_uri()}", whole=True)
    if more:
        lines.labelled("more:", more, "dim", whole=True)
    shown = lines.fitted() if more else [row.text for row in lines.rows]
    return Text("\n").join([*shown, Text("")])


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
    """A line of the screen. optional: the largest is left out first, if there are too many lines; 0: never. goes_on:
    it has more words of the line before."""

    text: Text
    optional: int
    goes_on: bool


class _Lines:
    def __init__(self, width: int) -> None:
        self.width, self.rows = width, list[_Row]()

    def add(self, text: Text, optional: int = 0, *, goes_on: bool = False) -> None:
        self.rows.append(_Row(text, optional, goes_on))

    def fitted(self) -> list[Text]:
        """At most a dozen lines, or else those that are never left out."""
        rows = self.rows
        for least in sorted({row.optional for row in rows if row.optional}, reverse=True):
            if len(rows) > _MOST_LINES:
                for row, following in pairwise(rows):
                    if following.goes_on and following.optional == least and not row.goes_on:
                        room = row.text.plain[: self.width - 2].rstrip()
                        row.text.truncate(room.rfind(". ") + 1 or len(room))
                        row.text.append(" …")
                rows = [row for row in rows if row.optional != least]
        return [row.text for row in rows]

    def blank(self, optional: int) -> None:
        self.add(Text(""), optional)

    def wrapped(self, text: str, style: str, indent: str, more: int = 0) -> None:
        """more: how optional the lines after the first one are."""
        for i, row in enumerate(_broken(printable(text), self.width, indent)):
            self.add(Text(row, style), more if i else 0, goes_on=i > 0)

    def labelled(self, word: str, text: str, style: str = "", *, whole: bool = False, optional: int = 0) -> None:
        for i, row in enumerate([text] if whole else _broken(text, self.width - _LABEL)):
            start = f"  {word}" if i == 0 else ""
            self.add(Text.assemble((start.ljust(_LABEL), "dim"), (printable(row), style)), optional)

    def bar(self, bar: StepBar) -> None:
        """The parts with blocks to scale, in one line if it fits."""
        told, parts = bar.told, len(bar.parts)
        room = self.width - _LABEL - sum(map(len, told)) - parts - 3 * (parts - 1) - 2  # which rounding may add
        blocks = min(room, _MOST_BLOCKS) if room >= 3 * parts else self.width // 3
        row = Text.assemble((f"  {bar.what}".ljust(_LABEL), "dim"))
        for part, words, share in zip(bar.parts, told, bar.shares, strict=True):
            count = max(round(share * blocks), 1)
            avoidable = min(round(count * part.avoidable_ns / max(part.ns, 1)), count)
            drawn = _FILLS.get(part.color, "·") * (count - avoidable) + _AVOIDABLE * avoidable
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
