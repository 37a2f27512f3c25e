"""The page of a comparison: differences in configuration, then in results, and the runs' timelines one above the
other. Summaries are enough; if the traces still exist, a step of each run is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.compare import Comparison
from harness.analysis.summary import Summary
from harness.format.format import middle
from harness.report.compare.breakdown import explained, is_per_token, steps_in_parts
from harness.report.compare.moved import moved_section, network_section, pacing_section
from harness.report.compare.series import rows_of, series_notes, series_table
from harness.report.compare.split import split_section
from harness.report.compare.steps import steps_section
from harness.report.compare.tables import (
    conclusion,
    configuration_table,
    is_clear,
    letters,
    remarks,
    result_table,
)
from harness.report.compare.timelines import NO_TIMELINES, Timelines, timelines
from harness.report.compare.work import collectives_section, kernels_section, kinds_section
from harness.report.elements import Page, Section, table
from harness.report.page.compose import docs_from, render_page
from harness.run import write_atomically
from harness.traces.progress import OnProgress, silent


@dataclass(frozen=True)
class Compared:
    """The compared runs; `pairs` hold the comparison of each other run with the first, in order."""

    names: Sequence[str]
    summaries: Sequence[Summary]
    pairs: Sequence[Comparison]

    @property
    def labels(self) -> list[str]:
        """The runs' names in plots: the letter, and the job's id or a shortened name."""
        return [
            f"{letter} · {job}" if (job := str((s.run or {}).get("job_id") or middle(name, 30))) else letter
            for letter, name, s in zip(letters(self.pairs), self.names, self.summaries, strict=True)
        ]

    @property
    def others(self) -> list[tuple[str, Comparison]]:
        """The letter of every run but the first, with its comparison to the first."""
        return list(zip(letters(self.pairs)[1:], self.pairs, strict=True))


def write_comparison(compared: Compared, path: Path, progress: OnProgress = silent) -> None:
    """Write the page. Raises WorkError: it cannot be written."""
    drawn = timelines(compared.labels, compared.summaries, progress)
    write_atomically(path, render_page(compose_comparison(compared, drawn), docs_from(path.parent)))


def compose_comparison(compared: Compared, drawn: Timelines = NO_TIMELINES) -> Page:
    """The content of the page, without HTML."""
    labels, summaries, pairs = compared.labels, compared.summaries, compared.pairs
    found, per_token = steps_in_parts(labels, summaries, pairs), is_per_token(summaries, pairs)
    before = [
        _quality(compared, "" if drawn.packed else drawn.missing),
        _configuration(compared),
        steps_section(labels, summaries, pairs),
        pacing_section(labels, summaries),
        network_section(labels, summaries),
        split_section(found, per_token),
        _results(compared),
        _efficiency(compared),
    ]
    after = [
        collectives_section(labels, pairs),
        kinds_section(labels, summaries, pairs),
        moved_section(pairs),
        kernels_section(pairs),
    ]
    return Page(
        title="Comparison of " + " and ".join(compared.labels),
        subtitle="Run a is the base. A ratio is the other run's value divided by a's value.",
        sentences=[
            _sentence(x, pair, explained(found, i, per_token))
            for i, (x, pair) in enumerate(compared.others, 1)
        ],
        command=None,
        before=[section for section in before if section.has_content],
        after=[section for section in after if section.has_content],
        timeline=drawn.packed,
        on_cpu=all(pair.on_cpu for pair in pairs),
    )


def _sentence(letter: str, pair: Comparison, why: str) -> str:
    ratio = pair.step_time
    if ratio is None:
        return f"{letter}: the step time of a or of {letter} was not recorded."
    interval = f"(95 % interval {ratio.low:.3f} to {ratio.high:.3f})"
    if pair.periods:
        takes = f"{letter}: its median period takes {ratio.ratio:.3f} × a's {interval}."
        return f"{takes} Nothing marks the steps of these traces, so there is no verdict on steps."
    text = f"{conclusion(ratio, letter, bool(pair.doubts))}; its median step takes {ratio.ratio:.3f} × a's {interval}."
    return f"{text} {why}".rstrip() if is_clear(ratio) else f"{letter}: {text}"


def _quality(compared: Compared, undrawn: str) -> Section:
    """Each run's recording, and the limits of the comparison. undrawn: why there are no timelines."""
    rows = []
    for letter, name, s in zip(letters(compared.pairs), compared.names, compared.summaries, strict=True):
        findings = "; ".join(dict.fromkeys(f.what for f in s.quality.problems))
        rows.append([letter, name, s.quality.verdict.value, findings or "–"])
    how = "; ".join(dict.fromkeys(f"Compared {p.normalisation}: {p.why_normalised}" for p in compared.pairs))
    limits = "; ".join(remarks(compared.pairs))
    notes = filter(None, (limits and f"{limits}.", undrawn))
    tables = table("The runs; a is the base", ("", "run", "recording", "problems"), rows, left=4)
    return Section("quality", "Comparability", how, tables=tables, note=" ".join(notes))


def _configuration(compared: Compared) -> Section:
    shown = configuration_table(compared.pairs)
    note = "" if shown.rows else "All recorded settings are the same."
    return Section("configuration", "Configuration", tables=[shown] if shown.rows else [], note=note)


def _results(compared: Compared) -> Section:
    shown = result_table(compared.pairs)
    return Section("results", "Results", tables=[shown] if shown.rows else [])


def _efficiency(compared: Compared) -> Section:
    """The efficiencies of a series on unlike numbers of devices; empty for other runs."""
    title, pairs = "Efficiency over the series", compared.pairs
    if not pairs[0].scaling:
        return Section("efficiency", title)
    rows = rows_of(pairs)
    lead = " ".join(f"{note}." for note in series_notes(letters(pairs), compared.summaries, rows))
    return Section("efficiency", title, lead, tables=[series_table(letters(pairs), compared.summaries, rows)])
