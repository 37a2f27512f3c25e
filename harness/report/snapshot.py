"""A memory snapshot of PyTorch in the terminal: the answer first, then who held the memory, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from harness.analysis.snapshot_numbers import (
    AtLine,
    DeviceMemory,
    GrowingLine,
    LineMemory,
    OutOfMemory,
    SnapshotNumbers,
)
from harness.common.display.format import about, amount, of, span
from harness.common.display.text import how_many
from harness.report.elements import PageTable
from harness.report.tables.table import TableScreen

_MOST_LINES = 12  # of a table, without --full
_MOST_SENTENCES = 3  # of one kind
_NO_HISTORY = (
    "Nothing was recorded before it, so there is no peak: call torch.cuda.memory._record_memory_history() at the start "
    "of the program."
)
_NO_LINES = "No block has a line of the program: record with context='all', which is the default."
_PIECES = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes the pieces one"


def snapshot_text(name: str, numbers: SnapshotNumbers, width: int, *, full: bool = False) -> str:
    """All of it, in lines at most `width` long. full: every line of the program."""
    screen = TableScreen(width)
    blocks = [_about_device(name, device, screen, full) for device in numbers.devices]
    empty = [f"{name}: no memory of any GPU was in use, and nothing was recorded"]
    return "\n\n".join("\n".join(map(screen.cut, block)) for block in blocks or [empty]) + "\n"


def _about_device(name: str, device: DeviceMemory, screen: TableScreen, full: bool) -> list[str]:
    sentences = _sentences(device)
    lines = [f"{name}: GPU {device.device}", *(line for each in sentences for line in screen.wrapped(each))]
    rows = device.at_peak or device.at_end
    if not _has_lines(device):
        return lines
    shown = rows if full else rows[:_MOST_LINES]
    lines += ["", *screen.block(_table(device, shown))]
    more = len(rows) - len(shown)
    return [*lines, f"  … and {how_many(more, 'more line')}: --full has all"] if more else lines


def _has_lines(device: DeviceMemory) -> bool:
    return any(line.file is not None for line in (*device.at_peak, *device.at_end))


def _sentences(device: DeviceMemory) -> Iterator[str]:
    """The answer first."""
    for failure in device.out_of_memory[-_MOST_SENTENCES:]:
        yield _failed(failure)
    if device.peak_bytes is not None:
        at = "when the recording began" if not device.peak_s else f"{span(device.peak_s)} after the recording began"
        yield f"At the peak, {at}, {amount(device.peak_bytes)} were held.{_most(device.at_peak)}"
    for growing in device.growing[:_MOST_SENTENCES]:
        yield _grows(growing, device)
    pending = f", {amount(device.pending_bytes)} wait for another stream" if device.pending_bytes else ""
    yield (
        f"At the end, {amount(device.reserved_bytes)} are reserved: {amount(device.allocated_bytes)} are in use"
        f"{pending}, {amount(device.unused_bytes)} are not; the largest free block has "
        f"{amount(device.largest_free_bytes)}.{'' if device.at_peak else _most(device.at_end)}"
    )
    if device.peak_bytes is None:
        yield _NO_HISTORY
    if not _has_lines(device) and (device.at_peak or device.at_end):
        yield _NO_LINES
    if device.contradicting_blocks:
        yield (
            f"The peak may be wrong: {how_many(device.contradicting_blocks, 'block')} of the recording and of the end "
            "contradict each other, as if the recording was stopped before the snapshot."
        )


def _most(lines: Sequence[LineMemory]) -> str:
    """A sentence of who holds most, after another one; empty where no line is known."""
    known = next((line for line in lines if line.file is not None), None)
    if known is None:
        return ""
    share = about(known.bytes / max(sum(line.bytes for line in lines), 1))
    return f" {_where(known)} holds most: {amount(known.bytes)}, {share}."


def _failed(failure: OutOfMemory) -> str:
    at = f" at {_where(failure)}" if failure.file is not None else ""
    had = (
        f"Out of memory{at}: {amount(failure.asked_bytes)} were asked for, and CUDA had "
        f"{amount(failure.device_free_bytes)} left. {amount(failure.reserved_bytes)} were reserved, of which "
        f"{amount(failure.allocated_bytes)} were in use and {amount(failure.unused_bytes)} not: "
    )
    if failure.is_fragmentation:
        return f"{had}enough, but in no one piece that could be taken (fragmentation). try: {_PIECES}."
    return f"{had}too little even in one piece, so less must be held at the peak."


def _grows(growing: GrowingLine, device: DeviceMemory) -> str:
    return (
        f"{_where(growing)} grows: of what it asked for all through the {span(device.recorded_s)} of the recording, "
        f"{amount(growing.grown_bytes)} stayed, {amount(60 * growing.bytes_per_s)} a minute. Steps are not known: if "
        "the recording is no longer than one, this may be its activations."
    )


def _where(place: AtLine) -> str:
    """The line of the program, short: `src/model.py:88 forward`."""
    if place.file is None:
        return "no line recorded"
    return f"{'/'.join(PurePosixPath(place.file).parts[-2:])}:{place.line} {place.function}"


def _table(device: DeviceMemory, rows: Sequence[LineMemory]) -> PageTable:
    ends = {(line.file, line.line, line.function): line.bytes for line in device.at_end}
    total = sum(line.bytes for line in device.at_peak or device.at_end)
    when = "at the peak" if device.at_peak else "at the end"
    cells = []
    for line in rows:
        end = amount(ends.get((line.file, line.line, line.function), 0)) if device.at_peak else ""
        cells.append([_where(line), amount(line.bytes), of(line.bytes, total), f"{line.block_count:,}", end])
    caption = "Who held it: the innermost line of the user's code that asked for it"
    return PageTable(caption, ["line", when, "share", "blocks", "at the end"], cells).shown()
