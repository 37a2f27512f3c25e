"""What a page shows of the page data: ranks, steps, a pipeline's passes. Reads only traces without page data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from harness.analysis.job.summarise import VERY_MANY
from harness.analysis.summary import Summary
from harness.measure.page_data import MOST_TRACKS, Lane, PageData, PipelinePass, ProcessTrack, read_page_data
from harness.traces.progress import OnProgress, silent

MOST_EVENTS = 300_000  # of all tracks together: about 3 MB of a page


@dataclass(frozen=True)
class ShownRanks:
    """The shown ranks (None: every process) and the shown part of the counted steps."""

    ranks: frozenset[int] | None
    first_step: int
    steps: int
    events_each: int
    usual: int = 0  # the most usual of the shown steps, whose pipeline is drawn


@dataclass
class TimelineModel:
    """The drawing of all traces."""

    tracks: list[ProcessTrack] = field(default_factory=list)
    passes: list[PipelinePass] = field(default_factory=list)


def choose(s: Summary) -> ShownRanks:
    """Ranks and steps that fit into a page; no trace is read. Shown are all ranks when they are few, else the first,
    last, fastest and slowest, the stragglers, one of each stage, and others in equal distances."""
    chosen = _worth_showing(s, [r for r in s.ranks if r is not None])
    count = max(len(chosen) if chosen is not None else len(s.devices), 1)
    lengths = next((r.durations_ns for r in s.steps.per_rank if r.durations_ns), [])
    each = MOST_EVENTS // count
    per_step = max((d.gpu_events for d in s.devices), default=1) / max(s.steps.found // max(len(s.devices), 1), 1)
    steps = max(1, min(len(lengths), int(each / max(per_step, 1))))
    first = _most_usual(lengths, steps)
    usual = _most_usual(lengths[first : first + steps], 1)
    return ShownRanks(chosen, first, steps, each, usual)


def _most_usual(lengths: Sequence[int], steps: int) -> int:
    """The first of the `steps` consecutive steps whose median is nearest to the median of all."""
    if len(lengths) <= steps:
        return 0
    usual = median(lengths)
    return min(range(len(lengths) - steps + 1), key=lambda i: (abs(median(lengths[i : i + steps]) - usual), i))


def _worth_showing(s: Summary, known: Sequence[int]) -> frozenset[int] | None:
    if len(known) < len(s.devices) and len(s.devices) <= MOST_TRACKS:
        return None
    if len(known) <= MOST_TRACKS:
        return frozenset(known)
    medians = {r.rank: r.median_ns for r in s.steps.per_rank if r.rank is not None and r.median_ns}
    wanted = [known[0]]
    if medians:
        wanted += [max(medians, key=lambda r: medians[r]), min(medians, key=lambda r: medians[r])]
    wanted += [x.rank for x in s.stragglers]
    wanted += [x.rank for x in s.pipeline.per_stage if x.rank is not None] if s.pipeline else []
    wanted += [known[-1], *known[:: max(len(known) // MOST_TRACKS, 1)]]
    return frozenset(list(dict.fromkeys(wanted))[:MOST_TRACKS])


def notes(s: Summary, choice: ShownRanks, tracks: Sequence[ProcessTrack]) -> list[str]:
    """The parts of the job that the timeline leaves out, and how to see them."""
    texts: list[str] = []
    if choice.ranks is not None and len(tracks) < len(s.ranks):
        texts.append(f"{len(tracks)} of {len(s.ranks)} ranks are shown; the command export perfetto writes all")
    counted = max((len(r.durations_ns) for r in s.steps.per_rank), default=0)
    if choice.steps < counted:
        texts.append(f"{choice.steps} of {counted} counted steps are shown, around the median step")
    return texts


def draw(
    s: Summary, choice: ShownRanks, page_data: Sequence[PageData] = (), progress: OnProgress = silent
) -> TimelineModel:
    """The model of the choice. Traces without page data are read, if they exist; of very many only shown ranks."""
    many = len(s.sources) > VERY_MANY
    at_hand: dict[str, list[PageData]] = {x.path: [] for x in s.sources if not many or _is_shown(x.rank, choice)}
    for one in page_data:
        if one.path in at_hand:
            at_hand[one.path].append(one)
    lacking = [Path(p) for p, own in at_hand.items() if not _has(own, choice) and Path(p).exists()]
    warmup = s.steps.excluded_warmup // max(len(s.steps.per_rank), 1)
    read = read_page_data(lacking, s.window, choice.ranks, warmup, progress=progress) if lacking else []
    complete = [c for path, own in at_hand.items() if Path(path) not in lacking for c in own] + read
    tracks = [cut for c in complete if c.track and (cut := _cut(c.track, choice))]
    tracks.sort(key=lambda x: (_number(x.rank), x.path))
    passes = [x for c in complete if c.track for x in _passes(c.track, choice)]
    return TimelineModel(tracks, passes)


def _number(rank: int | None) -> int:
    return -1 if rank is None else rank


def _is_shown(rank: int | None, choice: ShownRanks) -> bool:
    return choice.ranks is None or rank in choice.ranks


def _has(page_data: Sequence[PageData], choice: ShownRanks) -> bool:
    """Whether a file has page data, with a track for each process that is shown."""
    return bool(page_data) and all(c.track or not _is_shown(c.rank, choice) for c in page_data)


def _passes(track: ProcessTrack, choice: ShownRanks) -> list[PipelinePass]:
    """The micro-batches of the most usual of the shown steps."""
    at = choice.first_step + choice.usual
    return track.passes[at] if _is_shown(track.rank, choice) and at < len(track.passes) else []


def _cut(track: ProcessTrack, choice: ShownRanks) -> ProcessTrack | None:
    """The chosen steps of a track; None: it is not shown. Device events beyond a page's share are cut off."""
    if not _is_shown(track.rank, choice):
        return None
    steps = track.steps[choice.first_step : choice.first_step + choice.steps]
    marks = track.marks[choice.first_step : choice.first_step + choice.steps]
    low, high = (min(steps[0][1], marks[0]), steps[-1][2]) if steps else track.window
    starts = np.sort(np.concatenate([np.empty(0, np.int64), *(x.start_ns for x in track.lanes if x.group == "stream")]))
    starts = starts[np.searchsorted(starts, low) : np.searchsorted(starts, high)]
    notes: list[str] = []
    if len(starts) > choice.events_each:
        high = int(starts[choice.events_each])
        notes = [f"the first {choice.events_each:,} of {len(starts):,} events of rank {track.rank} are shown"]
    return replace(
        track,
        lanes=list(_lanes_within(track.lanes, low, high)),
        steps=[step for step in steps if step[1] < high],
        marks=marks,
        window=(low, high),
        notes=notes,
    )


def _lanes_within(lanes: Sequence[Lane], low: int, high: int) -> Iterator[Lane]:
    """The events of the lanes between two times. The first lane that is left has the label of its group."""
    label = ""
    for lane in lanes:
        label = lane.label or label
        rows = slice(np.searchsorted(lane.end_ns, low, "right"), np.searchsorted(lane.start_ns, high, "left"))
        if rows.start < rows.stop:
            yield replace(lane.cut(rows), label=label)
            label = ""
