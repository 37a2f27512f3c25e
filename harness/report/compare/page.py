"""The page of a comparison: configuration and results. Only the summaries are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.summary import Summary
from harness.common.display.format import middle
from harness.compare.summaries import SummaryDifferences
from harness.explain.answer import Diagnosis
from harness.report.compare import breakdown, tables
from harness.report.compare.verdicts import interval_text, verdict_text
from harness.report.elements import Page, PageTable, Section, table
from harness.report.page.compose import render_page
from harness.run import write_atomically

_SAME_SETTINGS = "All recorded settings are the same."


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


def write_comparison(compared: ComparedRuns, path: Path) -> None:
    """Write the page. Raises WorkError: it cannot be written."""
    write_atomically(path, render_page(compose_comparison(compared)))


def compose_comparison(compared: ComparedRuns) -> Page:
    labels, summaries, pairs = compared.labels, compared.summaries, compared.pairs
    found, per_token = breakdown.steps_in_parts(labels, summaries, pairs), breakdown.is_per_token(summaries, pairs)
    differing = _with_rows(tables.configuration_table(pairs))
    before = [
        _quality(compared),
        Section(
            "configuration",
            "Configuration",
            " ".join(tables.difference_sentences(pairs)),
            tables=differing,
            note="" if differing else _SAME_SETTINGS,
        ),
        breakdown.steps_section(pairs),
        breakdown.split_section(found, per_token),
        Section("results", "Results", tables=_with_rows(tables.result_table(pairs))),
        _efficiency(compared),
    ]
    after = [
        tables.collectives_section(pairs),
        tables.kinds_section(labels, summaries, pairs),
        tables.moved_section(pairs),
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
        on_cpu=all(pair.on_cpu for pair in pairs),
    )


def _sentence(letter: str, pair: SummaryDifferences, why: str) -> str:
    step = pair.step_time
    if step is None:
        return f"{letter}: the step time of a or of {letter} was not recorded."
    ratio = interval_text(step)
    text = f"{letter}: {verdict_text(step, doubtful=bool(pair.doubts))}; {letter} / a is {ratio}."
    return f"{text} {why}".rstrip() if step.excludes_no_change else text


def _quality(compared: ComparedRuns) -> Section:
    """Each run's recording, and the limits of the comparison."""
    rows = []
    for letter, name, s in zip(tables.letters(compared.pairs), compared.names, compared.summaries, strict=True):
        findings = "; ".join(dict.fromkeys(f.what for f in s.quality.problems))
        rows.append([letter, name, s.quality.verdict.value, findings or "–"])
    how = "; ".join(dict.fromkeys(f"Compared {p.normalisation}: {p.why_normalised}" for p in compared.pairs))
    limits = "; ".join(tables.remarks(compared.pairs))
    runs = table("The runs; a is the base", ("", "run", "recording", "problems"), rows, left=4)
    return Section("quality", "Comparability", how, tables=runs, note=limits and f"{limits}.")


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
