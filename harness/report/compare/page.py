"""The page of a comparison: configuration, results, and a step of each run, if its traces still exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.summary import Summary
from harness.common.format import middle
from harness.compare.summaries import SummaryDifferences
from harness.explain.answer import Diagnosis
from harness.measure.page_data import ProcessTrack
from harness.report.compare import breakdown, tables
from harness.report.compare.verdicts import interval_text, verdict_text
from harness.report.elements import Page, PageTable, Section, table
from harness.report.page.compose import docs_from, render_page
from harness.report.timeline.encode import pack_to_fit
from harness.report.timeline.timeline_model import ShownRanks, choose, draw
from harness.run import write_atomically
from harness.traces.progress import OnProgress, silent

_SAME_SETTINGS = "All recorded settings are the same."
_RANKS_EACH = 2  # of each run: the first and the last that all runs have
_PROCESSES_EACH = 4  # of runs whose traces do not give the rank


@dataclass(frozen=True)
class Timelines:
    """`packed` is empty when fewer than two runs can be drawn; `missing` says why, or which runs are left out."""

    packed: bytes
    missing: str


NO_TIMELINES = Timelines(b"", "The timelines are not drawn. All numbers are from the summaries.")


def timelines(labels: Sequence[str], summaries: Sequence[Summary], progress: OnProgress = silent) -> Timelines:
    """The tracks of every run whose traces still exist at the paths in its Summary."""
    ranks = _shared(summaries)
    drawn: list[ProcessTrack] = []
    notes: list[str] = []
    absent: list[str] = []
    for label, summary in zip(labels, summaries, strict=True):
        tracks, texts = _of_run(summary, ranks, len(summaries), progress)
        drawn += [replace(track, run=label) for track in tracks]
        notes += [f"{label}: {note}" for note in texts]
        if not tracks:
            absent.append(
                f"the traces of {label} were not found" if summary.devices else f"no work of {label} was recorded"
            )
    missing = "; ".join(absent)
    if len(summaries) - len(absent) < 2:
        return Timelines(b"", f"The timelines are not drawn: {missing}. All numbers are from the summaries.")
    notes += [missing] if missing else []
    notes.insert(0, "time 0 is the start of the chosen step of each run; dotted lines are the first run's steps")
    return Timelines(pack_to_fit(drawn, {}, notes), missing)


def _ends(ranks: Collection[int]) -> frozenset[int]:
    return frozenset(sorted(ranks)[:: max(len(ranks) - 1, 1)][:_RANKS_EACH])


def _shared(summaries: Sequence[Summary]) -> frozenset[int]:
    """The first and last rank that all runs with a trace have."""
    known = [frozenset(s.ranks) for s in summaries if s.devices]
    return _ends(frozenset.intersection(*known)) if known else frozenset()


def _of_run(
    s: Summary, shared: frozenset[int], run_count: int, progress: OnProgress
) -> tuple[list[ProcessTrack], list[str]]:
    if not s.devices:
        return [], []
    ranks = shared or _ends(s.ranks) or None
    choice = choose(s, ranks, run_count)
    sources = [x for x in s.sources if ranks is None or x.rank is None or x.rank in ranks]
    only = s.model_copy(update={"sources": sources})
    tracks = draw(only, choice, progress=progress).tracks[:_PROCESSES_EACH]
    return _from_zero(tracks, {c.host: c.offset_ns for c in s.clocks}), list(_left_out(s, choice, tracks))


def _left_out(s: Summary, choice: ShownRanks, tracks: Sequence[ProcessTrack]) -> Iterator[str]:
    processes = len({(d.source, d.rank, d.pid) for d in s.devices})
    counted = max((len(r.durations_ns) for r in s.steps.per_rank), default=0)
    if len(tracks) < processes:
        yield f"{len(tracks)} of {processes} processes are shown"
    if choice.steps < counted:
        yield f"{choice.steps} of {counted} counted steps are shown"
    if len(tracks) > 1 and not _have_epochs(tracks):
        yield "the clocks of its ranks cannot be compared"


def _have_epochs(tracks: Sequence[ProcessTrack]) -> bool:
    return all(track.epoch_ns is not None for track in tracks)


def _from_zero(tracks: Sequence[ProcessTrack], offsets_ns: Mapping[str, int]) -> list[ProcessTrack]:
    """On a clock that is 0 at the first track's begin; if clocks cannot be compared, each track begins at 0."""
    if not _have_epochs(tracks):
        return [replace(track, clock="", epoch_ns=-track.window[0]) for track in tracks]
    epochs = [(track.epoch_ns or 0) - offsets_ns.get(track.clock, 0) for track in tracks]
    begin = min((track.window[0] + e for track, e in zip(tracks, epochs, strict=True)), default=0)
    return [replace(track, clock="", epoch_ns=e - begin) for track, e in zip(tracks, epochs, strict=True)]


@dataclass(frozen=True)
class ComparedRuns:
    """The compared runs; `pairs` hold the comparison of each other run with the first, in order."""

    names: Sequence[str]
    summaries: Sequence[Summary]
    pairs: Sequence[SummaryDifferences]

    @property
    def labels(self) -> list[str]:
        """The runs' names in plots: the letter, and the job's id or a shortened name."""
        return [
            f"{letter} · {job}" if (job := str((s.run or {}).get("job_id") or middle(name, 30))) else letter
            for letter, name, s in zip(tables.letters(self.pairs), self.names, self.summaries, strict=True)
        ]


def write_comparison(compared: ComparedRuns, path: Path, progress: OnProgress = silent) -> None:
    """Write the page. Raises WorkError: it cannot be written."""
    drawn = timelines(compared.labels, compared.summaries, progress)
    write_atomically(path, render_page(compose_comparison(compared, drawn), docs_from(path.parent)))


def compose_comparison(compared: ComparedRuns, drawn: Timelines = NO_TIMELINES) -> Page:
    labels, summaries, pairs = compared.labels, compared.summaries, compared.pairs
    found, per_token = breakdown.steps_in_parts(labels, summaries, pairs), breakdown.is_per_token(summaries, pairs)
    differing = _with_rows(tables.configuration_table(pairs))
    before = [
        _quality(compared, "" if drawn.packed else drawn.missing),
        Section("configuration", "Configuration", tables=differing, note="" if differing else _SAME_SETTINGS),
        breakdown.steps_section(pairs),
        breakdown.split_section(found, per_token),
        Section("results", "Results", tables=_with_rows(tables.result_table(pairs))),
        _efficiency(compared),
    ]
    after = [
        tables.collectives_section(pairs),
        tables.kinds_section(labels, summaries, pairs),
        tables.moved_section(pairs),
        tables.kernels_section(pairs),
    ]
    sentences = [
        _sentence(x, pair, breakdown.explained(found, i, per_token))
        for i, (x, pair) in enumerate(tables.others(pairs), 1)
    ]
    return Page(
        title="Comparison of " + " and ".join(labels),
        subtitle="Run a is the base. A ratio is the other run's value divided by a's value.",
        said=Diagnosis(sentences),
        before=[section for section in before if section.has_content],
        after=[section for section in after if section.has_content],
        timeline=drawn.packed,
        on_cpu=all(pair.on_cpu for pair in pairs),
    )


def _sentence(letter: str, pair: SummaryDifferences, why: str) -> str:
    step = pair.step_time
    if step is None:
        return f"{letter}: the step time of a or of {letter} was not recorded."
    ratio = f"{letter} / a is {interval_text(step, 'periods' if pair.periods else 'steps')}"
    if pair.periods:
        return f"{letter}: {ratio}. Nothing marks the steps of these traces, so there is no verdict on steps."
    text = f"{letter}: {verdict_text(step, doubtful=bool(pair.doubts))}; {ratio}."
    return f"{text} {why}".rstrip() if step.excludes_no_change else text


def _quality(compared: ComparedRuns, undrawn: str) -> Section:
    """Each run's recording, and the limits of the comparison. undrawn: why there are no timelines."""
    rows = []
    for letter, name, s in zip(tables.letters(compared.pairs), compared.names, compared.summaries, strict=True):
        findings = "; ".join(dict.fromkeys(f.what for f in s.quality.problems))
        rows.append([letter, name, s.quality.verdict.value, findings or "–"])
    how = "; ".join(dict.fromkeys(f"Compared {p.normalisation}: {p.why_normalised}" for p in compared.pairs))
    limits = "; ".join(tables.remarks(compared.pairs))
    notes = filter(None, (limits and f"{limits}.", undrawn))
    runs = table("The runs; a is the base", ("", "run", "recording", "problems"), rows, left=4)
    return Section("quality", "Comparability", how, tables=runs, note=" ".join(notes))


def _with_rows(shown: PageTable) -> list[PageTable]:
    return [shown] if shown.rows else []


def _efficiency(compared: ComparedRuns) -> Section:
    """The efficiencies of a series on unlike numbers of devices; empty for other runs."""
    title, pairs = "Efficiency over the series", compared.pairs
    if not pairs[0].scaling:
        return Section("efficiency", title)
    runs = tables.letters(pairs), compared.summaries, breakdown.rows_of(pairs)
    lead = " ".join(f"{note}." for note in breakdown.series_notes(*runs))
    return Section("efficiency", title, lead, tables=[breakdown.series_table(*runs)])
