"""A file's records to columns: by its line breaks, a large file in parallel parts; or else in the exact way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from harness.traces.errors import TraceError
from harness.traces.kineto.blocks import Blocks
from harness.traces.kineto.framing import Records
from harness.traces.kineto.gather import Gathered, Unbelievable
from harness.traces.kineto.identity import About, read_about
from harness.traces.kineto.layout import OtherLayout, Picker, picked_by_layout
from harness.traces.kineto.pick import RecordBatch, picked
from harness.traces.pool import KILLED, process_pool
from harness.traces.progress import OnProgress

_RECORDS_AT_ONCE = 1024
_PART_BYTES = 24 << 20  # less is read sooner than a process is started


def gathered_from(
    path: Path, progress: OnProgress, workers: int, *, operators: bool
) -> tuple[Gathered, Records, About]:
    """The records' content, in the fastest way that the file allows. Raises TraceError: the file is not a trace."""
    try:
        gathered, records = _by_lines(path, progress, workers, operators)
    except (OtherLayout, msgspec.DecodeError, ValueError):
        try:
            gathered, records = _filled(path, progress, operators, picked, forgiving=True)
        except (msgspec.DecodeError, ValueError, Unbelievable) as error:
            raise TraceError(path, f"is damaged: one of its records cannot be read ({error})") from error
    return gathered, records, read_about(records.header, records.footer)


def names_no_gpu(path: Path) -> bool:
    """Whether the text before the file's events lists no GPU."""
    return read_about(Records(Blocks(path)).header, b"").devices == []


def _by_lines(path: Path, progress: OnProgress, workers: int, operators: bool) -> tuple[Gathered, Records]:
    blocks = Blocks(path, progress)
    parts = 1 if blocks.is_packed else min(workers, path.stat().st_size // _PART_BYTES)
    if parts < 2:
        return _filled(path, progress, operators, picked_by_layout)
    records = Records(blocks)
    picker = Picker(records.rest, operators)
    gathered, records.footer = _in_parts(path, picker, records.begin, parts, progress)
    return gathered, records


def _filled(
    path: Path,
    progress: OnProgress,
    operators: bool,
    pick: Callable[[Records, bool], Iterator[RecordBatch]],
    forgiving: bool = False,
) -> tuple[Gathered, Records]:
    records = Records(Blocks(path, progress))
    return _gathered(pick(records, operators), forgiving), records


def _gathered(batches: Iterator[RecordBatch], forgiving: bool = False) -> Gathered:
    """Batches joined to a thousand records or more, which spreads the cost of a batch over them."""
    gathered, joined = Gathered(forgiving=forgiving), RecordBatch()
    for batch in batches:
        joined.extend(batch)
        if len(joined) >= _RECORDS_AT_ONCE:
            gathered.add(joined)
            joined = RecordBatch()
    gathered.add(joined)
    return gathered


def _in_parts(
    path: Path, picker: Picker, begin: int, parts: int, progress: OnProgress
) -> tuple[Gathered, bytes]:
    """Parts of the file read by a process each: the parts' content joined in the file's order, and the footer."""
    from concurrent.futures import BrokenExecutor

    size = path.stat().st_size
    bounds = [begin + (size - begin) * part // parts for part in range(parts + 1)]
    whole: Gathered | None = None
    with process_pool(parts) as pool:
        stops: list[int | None] = [*bounds[1:-1], None]
        jobs = [pool.submit(_part, path, picker, *span) for span in zip(bounds, stops, strict=False)]
        for stop, job in zip(bounds[1:], jobs, strict=True):
            try:
                gathered, footer = job.result()
            except BrokenExecutor as error:
                raise TraceError(path, KILLED) from error
            whole = gathered if whole is None else whole.joined(gathered)
            progress(stop, size)
    assert whole is not None
    return whole, footer


def _part(path: Path, picker: Picker, start: int, stop: int | None) -> tuple[Gathered, bytes]:
    """The records that begin from byte `start` up to `stop`; None: up to the end, with the footer."""
    blocks = Blocks(path).plain_from(start)
    text = next(blocks, b"")
    first = text.find(picker.begin)
    if first < 0:
        raise OtherLayout
    rest = chain([text[first:]], blocks)
    batches = picker.to_the_end(rest) if stop is None else picker.up_to(rest, stop - start - first)
    return _gathered(batches), picker.footer
