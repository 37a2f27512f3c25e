"""The tables of a terminal's report, each with the columns that go first where the screen is narrow. Knows only the
Summary; what a table says is in rows_*.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.analysis.summary import Summary
from harness.format import known
from harness.format.format import duration
from harness.report.elements import Table
from harness.report.tables import communication, machine, work
from harness.report.tables import time as rows_time
from harness.report.tables.screen import Screen

MANY_DEVICES = 16  # more than these are shown as a spread and the busiest and idlest
FEW_DEVICES = 8  # the same for the short form
NOTICEABLE = 0.005  # share of the devices' time from which advice is worth a line
_WHOLE = 1_000  # characters of a name before the table is fitted to the screen
_GROUP = 16

Section = Callable[[Summary, Screen], list[str]]


def split(many: int, of_each: int) -> Section:
    """The split of every device, or of the busiest and the idlest `of_each` where there are more than `many`."""

    def section(s: Summary, screen: Screen) -> list[str]:
        shown = s.devices
        note: list[str] = []
        if len(shown) > many:
            ordered = known.by_idleness(shown)
            shown = ordered[:of_each] + ordered[-of_each:]
            note = [f"  … the {of_each} busiest and the {of_each} idlest of {len(ordered)} are shown"]
        found = rows_time.split_table(shown, s.devices, rows_time.window_word(s))
        return screen.block(found, ("idle by cause", "peak memory", "memory", "window")) + note

    return section


FEW = split(FEW_DEVICES, 3)


def _idle(s: Summary, screen: Screen) -> list[str]:
    gaps = rows_time.gap_table(s, _WHOLE)
    return _apart([screen.block(rows_time.cause_table(s)), screen.block(gaps, ["device", "after", "before"])])


def _kernels(s: Summary, screen: Screen) -> list[str]:
    return screen.block(work.kernel_table(s, _WHOLE), ["longest", "shortest", "mean"])


def _collectives(s: Summary, screen: Screen) -> list[str]:
    whole = communication.collective_table(s, work.TOP, _GROUP)
    fits = communication.fit_table(s)
    tables = (
        screen.block(whole, ["arrives last", "start skew", "alg GB/s", "type", "group", "ranks"]),
        screen.block(communication.issued_table(s)),
        screen.block(fits) if any(f.alpha_ns for f in s.collective_fits) else [],
        screen.block(communication.straggler_table(s)),
        screen.block(communication.clock_table(s)),
    )
    return _apart(tables)


def _apart(blocks: Iterable[list[str]]) -> list[str]:
    """Blocks one below the other with an empty line between."""
    return [line for block in blocks if block for line in ("", *block)][1:]


def _pipeline(s: Summary, screen: Screen) -> list[str]:
    words = f"Pipeline: {rows_time.pipeline_words(s)}" if s.pipeline else ""
    stages = rows_time.stage_table(s)
    return screen.wrapped(words, "  ") + screen.block(Table("", stages.head, stages.rows))


def _copies(s: Summary, screen: Screen) -> list[str]:
    total = sum(d.window_ns for d in s.devices)
    pageable = [c for c in s.copies if c.pageable_ns > NOTICEABLE * total]  # an .item() is no reason to pin
    advice = [
        f"  ! {c.pageable_count:,} copies {c.direction.removeprefix('copy ')} use pageable memory "
        f"({duration(c.pageable_ns)}): pin the host buffers (pin_memory=True)"
        for c in pageable
    ]
    return screen.block(machine.copy_table(s)) + [line for text in advice for line in screen.wrapped(text)]


def _ranks(make: Callable[[Summary], Table], spare: Sequence[str] = ()) -> Section:
    """A table of ranks: of many only the first, the page and --csv have all."""

    def section(s: Summary, screen: Screen) -> list[str]:
        whole = make(s)
        more = len(whole.rows) - MANY_DEVICES
        few = Table(whole.caption, whole.head, whole.rows[:MANY_DEVICES], whole.left)
        note = [f"  … and {more} more ranks: --csv DIR has all"] if more > 0 else []
        return screen.block(few, spare) + note

    return section


def _plain(make: Callable[[Summary], Table], spare: Sequence[str] = ()) -> Section:
    return lambda s, screen: screen.block(make(s), spare)


def _named(make: Callable[[Summary, int], Table], spare: Sequence[str] = ()) -> Section:
    return lambda s, screen: screen.block(make(s, _WHOLE), spare)


SPLIT = split(MANY_DEVICES, 5)
# What the short form names and leaves out.
FURTHER: tuple[tuple[str, Section], ...] = (
    ("kinds of work", _plain(work.kind_table)),
    ("phases", _plain(work.phase_table)),
    ("idle time", _idle),
    ("ranges", _named(work.range_table, ["idle under it"])),
    ("kernels", _kernels),
    ("", _named(work.unknown_table)),
    ("collectives", _collectives),
    ("the pipeline", _pipeline),
    ("launches", _ranks(machine.launch_table)),
    ("copies", _copies),
    ("counters", _plain(work.counter_table)),
    (
        "each rank's own clock",
        _ranks(machine.training_table, ["steps", "loss", "status", "peak memory"]),
    ),
    ("", _plain(machine.speed_table)),
    ("the monitor", _plain(machine.monitor_table, ["name", "of"])),
)
