"""The columns that a page draws of a process, kept while it is measured, so that no trace is read twice: a few of every
process, and the whole track of processes that may be shown. Knows nothing about the drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from harness.analysis.process.breakdown import COMMUNICATION, NOT_WORK
from harness.analysis.process.intervals import lengths_within
from harness.analysis.process.kinds import Rules, load_rules
from harness.analysis.process.prepared import MeasuredProcess, inside, prepare_process
from harness.analysis.process.view import views
from harness.analysis.summary import Window
from harness.measure.tracks import ProcessTrack, process_track
from harness.traces import TraceError, map_traces
from harness.traces.progress import OnProgress, silent
from harness.traces.trace import I64, Trace

MOST_TRACKS = 8  # processes that a page shows by default; of more files no track is kept
BINS = 200  # of a device's window, in a page
_SAMPLES_PER_BIN = 8  # windows of different lengths share bins: values between samples are interpolated

Ranks = frozenset[int] | None  # None: of every process


@dataclass(frozen=True)
class Utilisation:
    """How long one device had worked by each of n moments, the first and the last being its window's ends.

    All columns in nanoseconds; `overlap_ns`: compute and communication at once.
    """

    rank: int | None
    device: int
    at_ns: I64
    compute_ns: I64
    communication_ns: I64
    overlap_ns: I64


@dataclass(frozen=True)
class PageData:
    """One process. `hidden`: kind -> its time, and its time beside communication. `track`: None where not wanted."""

    rank: int | None
    path: str
    utilisation: list[Utilisation]
    hidden: dict[str, tuple[int, int]]
    track: ProcessTrack | None


def page_data_of(m: MeasuredProcess, ranks: Ranks = None) -> list[PageData]:
    """One process, with its track where its rank is among `ranks`. Empty for a process without work on any device."""
    if not m.windows:
        return []
    rank = m.view.rank
    wanted = ranks is None or rank in ranks
    return [
        PageData(
            rank=rank,
            path=m.view.trace.identity.path,
            utilisation=[_utilisation(m, device) for device in m.rows],
            hidden=_hidden(m),
            track=process_track(m) if wanted else None,
        )
    ]


def read_page_data(
    files: Sequence[Path],
    window: Window,
    ranks: Ranks,
    workers: int | None = None,
    progress: OnProgress = silent,
) -> list[PageData]:
    """The processes of traces that were measured elsewhere or earlier. Files that cannot be read are left out."""
    reduce = partial(page_data_of_trace, window=window, rules=load_rules(), ranks=ranks)
    outcomes = map_traces(files, reduce, workers=workers, progress=progress)
    return [one for outcome in outcomes if not isinstance(outcome, TraceError) for one in outcome]


def page_data_of_trace(trace: Trace, window: Window, rules: Rules, ranks: Ranks = None) -> list[PageData]:
    """Every process of one trace."""
    return [one for view in views(trace) for one in page_data_of(prepare_process(view, window, rules), ranks)]


def _utilisation(m: MeasuredProcess, device: int) -> Utilisation:
    start, end = m.windows[device]
    bin_ns = max(-(-(end - start) // BINS), 1)
    samples = np.arange(BINS * _SAMPLES_PER_BIN + 1, dtype=np.int64)
    at = np.minimum(start + samples * bin_ns // _SAMPLES_PER_BIN, end)
    sets = m.busy[device]
    since = np.full(len(at), start)
    lengths = (lengths_within(of, since, at) for of in (sets.compute, sets.communication, sets.overlap))
    return Utilisation(m.view.rank, device, at, *lengths)


def _hidden(m: MeasuredProcess) -> dict[str, tuple[int, int]]:
    """Per kind of work its time in the windows, and the part of it during communication of the same device."""
    events, chosen = m.view.events, inside(m)
    chosen &= ~np.isin(m.kinds.event_class, (COMMUNICATION, NOT_WORK))
    beside = np.zeros(len(events), np.int64)
    for device, rows in m.rows.items():
        beside[rows] = lengths_within(
            m.busy[device].communication, events.start_ns[rows], events.end_ns[rows]
        )
    code = m.kinds.code[chosen]
    size = len(m.kinds.labels)
    total = np.bincount(code, (events.end_ns - events.start_ns)[chosen], size)
    shared = np.bincount(code, beside[chosen], size)
    labels = [" ".join(filter(None, label)) for label in m.kinds.labels]
    return {label: (int(t), int(b)) for label, t, b in zip(labels, total, shared, strict=True) if t}
