"""A Summary as text for a terminal: the page's tables, with the columns that fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from harness.analysis.device_time import busiest_and_idlest
from harness.analysis.labels import device_names, field_word, host_names, recording, step_parts
from harness.analysis.summary import Problem, RecordingVerdict, Summary
from harness.common.display.format import cut, duration
from harness.explain.answer import answer
from harness.explain.findings import has_marked_steps
from harness.report.first_screen import files_of, first_screen, place_of
from harness.report.tables import catalogue
from harness.report.tables.efficiency import SPEED
from harness.report.tables.table import WIDTH, TableOf, TableScreen
from harness.report.tables.time import SPLIT, labelled

_MARKS = {RecordingVerdict.GOOD: "·", RecordingVerdict.DOUBTFUL: "?", RecordingVerdict.UNUSABLE: "!"}
_MOST_FILES = 3  # named of those that cannot be read
_MANY_DEVICES = 16, 10  # of more than 16 devices 10 are shown: the busiest and the idlest


def render(summary: Summary, width: int = WIDTH) -> str:
    """The whole report of one job as plain text, in lines at most `width` long."""
    return f"{first_screen(summary, width).plain}\n{render_rest(summary, width)}"


def render_rest(summary: Summary, width: int = WIDTH) -> str:
    """What follows the first screen: why, and every table."""
    screen = TableScreen(width)
    blocks = [section(summary, screen) for section in (_facts, _further, _quality, _steps, _speed, _split)]
    blocks += [_table(declared, summary, screen) for declared in catalogue.TABLES]
    narrowed = f"Some columns do not fit into {width} characters: a wider terminal, the page or export csv has them."
    return _joined([*blocks, screen.wrapped(narrowed, "  ") if screen.narrowed else []], screen)


def render_section(summary: Summary, section: str, width: int = WIDTH) -> str:
    screen = TableScreen(width)
    chosen = [table for table in catalogue.TABLES if table.section == section]
    return _joined([_table(declared, summary, screen) for declared in chosen], screen)


def _table(declared: TableOf[Any], s: Summary, screen: TableScreen) -> list[str]:
    """A table with its advice; empty where it has no rows or is not for the terminal."""
    rows = declared.rows(s) if declared.in_terminal(s) else ()
    shown = declared.of(rows[: declared.most], s, on_page=False)
    if declared.terminal_caption is not None:
        shown = replace(shown, caption=declared.terminal_caption(s))
    more = len(rows) - declared.most
    note = [f"  … and {more} more {declared.rest}: export csv has all"] if more > 0 and declared.rest else []
    advice = [line for text in declared.advice(s) for line in screen.wrapped(text)]
    return [*screen.block(shown, declared.spare), *note, *advice]


def _split(s: Summary, screen: TableScreen) -> list[str]:
    """The split of every device, or of the busiest and the idlest of many."""
    chosen = busiest_and_idlest(s.devices, *_MANY_DEVICES)
    block = screen.block(SPLIT.of(labelled(chosen, s), s, on_page=False), SPLIT.spare)
    half, every = len(chosen) // 2, len(s.devices)
    if len(chosen) < every:
        block.append(f"  … the {half} busiest and the {half} idlest of {every} are shown")
    return block


def _joined(blocks: Iterable[list[str]], screen: TableScreen) -> str:
    return "\n\n".join("\n".join(map(screen.cut, block)) for block in blocks if block) + "\n"


def _facts(s: Summary, screen: TableScreen) -> list[str]:
    files = files_of(s)
    size = f"world size {s.world_size}" if s.world_size else ""
    tools = ", ".join(sorted({x.tool for x in s.sources}))
    read = f"{len(files)} trace{'s' * (len(files) != 1)} ({tools})" if files else "no trace"
    facts = filter(None, (read, size, host_names(s), device_names(s), s.backend))
    place = place_of(s)
    if len(place) > screen.width:
        place = "…" + place[1 - screen.width :]  # the end of a path says most
    return [place, *screen.wrapped("  " + " · ".join(facts), "  ")]


def _further(s: Summary, screen: TableScreen) -> list[str]:
    return [line for sentence in answer(s).further for line in screen.wrapped(sentence, "  ")]


def _quality(s: Summary, screen: TableScreen) -> list[str]:
    lines = [f"Recording: {recording(s)}"]
    alike: dict[tuple[RecordingVerdict, str], list[Problem]] = {}
    for problem in s.quality.problems:
        alike.setdefault((problem.severity, problem.what), []).append(problem)
    for (severity, what), found in alike.items():
        if severity is RecordingVerdict.UNUSABLE and len(found) > 1:
            lines += _each(f"  {_MARKS[severity]} {what}", found, screen)
            continue
        more = f" (and {len(found) - 1} more like it)" if len(found) > 1 else ""
        lines += screen.wrapped(f"  {_MARKS[severity]} {what}{more}: {found[0].evidence}")
    withheld: dict[str, list[str]] = {}
    for w in s.quality.withheld:
        withheld.setdefault(w.reason, []).append(field_word(w.field))
    return lines + [
        line
        for reason, fields in withheld.items()
        for line in screen.wrapped(f"  – not given: {', '.join(fields)}: {reason}")
    ]


def _each(what: str, problems: list[Problem], screen: TableScreen) -> list[str]:
    """A line for each of some files, since each lacks for another reason."""
    rest = len(problems) - _MOST_FILES if len(problems) > _MOST_FILES + 1 else 0
    lines = [f"{what}, {len(problems)} in all:"]
    lines += [
        line for one in problems[: len(problems) - rest] for line in screen.wrapped(f"    {one.evidence}", "      ")
    ]
    return [*lines, f"    … and {rest} more: the page (--html FILE) and --json name each"] if rest > 0 else lines


def _steps(s: Summary, screen: TableScreen) -> list[str]:
    x, d = s.steps, s.steps.duration
    if d is None:
        none = f"{x.found} found, none can be counted" if x.found else "none found"
        return [f"Steps: {none}; the window is from the first to the last event of the devices"] if s.sources else []
    excluded = (
        *((x.excluded_warmup, "warm-up"), (x.excluded_cut_off, "cut off"), (x.excluded_empty, "without work")),
        (x.excluded_work_lost, "where work is missing"),
    )
    left_out = [f"{count} {why}" for count, why in excluded if count]
    without = f" ({', '.join(left_out)} left out)" if left_out else ""
    over = f" over {len(x.per_rank)} ranks" if len(x.per_rank) > 1 else ""
    what = "Steps" if has_marked_steps(s) else "Periods, since the steps are not marked"
    lines = [
        f"{what}: {cut(x.source, 60)}, {x.counted} counted of {x.found}{over}{without}",
        f"  median {duration(d.median_ns)}   p10 {duration(d.p10_ns)}   p90 {duration(d.p90_ns)}"
        f"   min {duration(d.min_ns)}   max {duration(d.max_ns)}",
    ]
    if parts := step_parts(x):
        lines.append(f"  mean {duration(x.mean_ns)}: {parts}")
    if x.on_device:
        lines.append("  on the device, since the host is ahead of it")
    if x.straggler_score is not None and x.slowest_rank is not None:
        lines.append(f"  slowest rank {x.slowest_rank}: {x.straggler_score:.3f} × the median rank")
    return [part for line in lines for part in screen.wrapped(line)]


def _speed(s: Summary, screen: TableScreen) -> list[str]:
    """The throughput, and the MFU where it is known."""
    speed = [
        text if i == 0 else f"{name} {text}" for i, (name, text) in enumerate(SPEED.rows(s)) if i == 0 or name == "MFU"
    ]
    return screen.wrapped(f"Speed: {'; '.join(speed)}", "  ") if speed else []
