"""The timelines of several runs on one axis, for the page of a comparison. Each run begins at 0; the page moves
them so that one step of each begins together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.summary import Summary
from harness.measure.tracks import ProcessTrack
from harness.report.timeline.encode import pack_to_fit
from harness.report.timeline.timeline_model import ShownRanks, choose, draw
from harness.traces.progress import OnProgress, silent

_RANKS_EACH = 2  # of each run: the first and the last that all runs have
_PROCESSES_EACH = 4  # of runs whose traces do not give the rank


@dataclass(frozen=True)
class Timelines:
    """`packed` is empty when fewer than two runs can be drawn; `missing` says why, or which runs are left out."""

    packed: bytes
    missing: str


NO_TIMELINES = Timelines(b"", "The timelines are not drawn. All numbers are from the summaries.")


def timelines(
    labels: Sequence[str], summaries: Sequence[Summary], progress: OnProgress = silent
) -> Timelines:
    """The tracks of every run whose traces still exist at the paths in its Summary."""
    ranks = _shared(summaries)
    drawn: list[ProcessTrack] = []
    notes: list[str] = []
    absent: list[str] = []
    for label, summary in zip(labels, summaries, strict=True):
        tracks, texts = _of_run(summary, ranks, len(summaries), progress)
        drawn += [replace(track, run=label) for track in tracks]
        notes += [f"{label}: {note}" for note in texts]
        absent += [] if tracks else [_why(label, summary)]
    missing = "; ".join(absent)
    if len(summaries) - len(absent) < 2:
        return Timelines(b"", f"The timelines are not drawn: {missing}. All numbers are from the summaries.")
    notes += [missing] if missing else []
    notes.insert(
        0, "time 0 is the start of the chosen step of each run; dotted lines are the first run's steps"
    )
    return Timelines(pack_to_fit(drawn, {}, notes), missing)


def _ends(ranks: Collection[int]) -> frozenset[int]:
    """The first and the last."""
    return frozenset(sorted(ranks)[:: max(len(ranks) - 1, 1)][:_RANKS_EACH])


def _shared(summaries: Sequence[Summary]) -> frozenset[int]:
    """The first and last rank that all runs with a trace have."""
    known = [frozenset(s.ranks) for s in summaries if s.devices]
    return _ends(frozenset.intersection(*known)) if known else frozenset()


def _of_run(
    s: Summary, shared: frozenset[int], runs: int, progress: OnProgress
) -> tuple[list[ProcessTrack], list[str]]:
    if not s.devices:
        return [], []
    ranks = shared or _ends(s.ranks) or None
    choice = choose(s, ranks, runs)
    only = s.model_copy(update={"sources": [x for x in s.sources if _is_wanted(x.rank, ranks)]})
    tracks = draw(only, choice, progress=progress).tracks[:_PROCESSES_EACH]
    return _from_zero(tracks, {c.host: c.offset_ns for c in s.clocks}), list(_left_out(s, choice, tracks))


def _why(label: str, s: Summary) -> str:
    """Why a run has no tracks."""
    return f"the traces of {label} were not found" if s.devices else f"no work of {label} was recorded"


def _left_out(s: Summary, choice: ShownRanks, tracks: Sequence[ProcessTrack]) -> Iterator[str]:
    """The parts of the run that are not drawn."""
    processes = len({(d.source, d.rank, d.pid) for d in s.devices})
    counted = max((len(r.durations_ns) for r in s.steps.per_rank), default=0)
    if len(tracks) < processes:
        yield f"{len(tracks)} of {processes} processes are shown"
    if choice.steps < counted:
        yield f"{choice.steps} of {counted} counted steps are shown"
    if len(tracks) > 1 and not _have_epochs(tracks):
        yield "the clocks of its ranks cannot be compared"


def _is_wanted(rank: int | None, ranks: frozenset[int] | None) -> bool:
    return ranks is None or rank is None or rank in ranks


def _have_epochs(tracks: Sequence[ProcessTrack]) -> bool:
    return all(track.epoch_ns is not None for track in tracks)


def _from_zero(tracks: Sequence[ProcessTrack], offsets_ns: Mapping[str, int]) -> list[ProcessTrack]:
    """The run's tracks on a clock that is 0 at the first track's begin, so that the days between two runs are not
    drawn. Without comparable clocks each track begins at 0."""
    if not _have_epochs(tracks):
        return [replace(track, clock="", epoch_ns=-track.window[0]) for track in tracks]
    epochs = [(track.epoch_ns or 0) - offsets_ns.get(track.clock, 0) for track in tracks]
    begin = min((track.window[0] + e for track, e in zip(tracks, epochs, strict=True)), default=0)
    return [replace(track, clock="", epoch_ns=e - begin) for track, e in zip(tracks, epochs, strict=True)]
