"""A comparison as text: configuration first, then results, one line each; of several runs each against the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap

from harness.analysis.summary import Summary
from harness.compare.comparison import Comparison
from harness.compare.summaries import SummaryDifferences
from harness.compare.verdict import ChangeVerdict
from harness.explain.memory import fit_sentences
from harness.report.compare import breakdown, tables
from harness.report.compare.verdicts import interval_text, verdict_table
from harness.report.elements import PageTable
from harness.report.tables.table import WHOLE, WIDTH, TableScreen, fitted, table

_SAME_SETTINGS = "Configuration: all recorded settings are the same"
_MOVED = "Ranges and kernels with the largest change from a to {}, per rank and step"


def render_comparisons(pairs: tables.Pairs, summaries: Sequence[Summary] = (), width: int = WHOLE) -> str:
    """A column for each run against a. With the runs' summaries also the part of the step that makes the difference."""
    known, names, screen = tables.others(pairs), [pairs[0].a, *(pair.b for pair in pairs)], TableScreen(width)
    whys = _whys(pairs, summaries, screen)
    blocks = [
        "\n".join(f"{x}: {name}" for x, name in zip(tables.letters(pairs), names, strict=True)),
        "\n".join(line for text in _differing(pairs) for line in screen.wrapped(text, "  ")),
        _titled("Configuration that differs", tables.configuration_table(pairs), screen),
        _step_times(known, whys, screen) + _how_sure(pairs, screen),
        _titled("Results", tables.result_table(pairs), screen),
        _efficiency(pairs, summaries, screen),
        _titled("Collectives, per rank and step", tables.collective_table(pairs), screen),
        *(_titled(_MOVED.format(other), tables.moved_in_short(pair, other), screen) for other, pair in known),
        "\n".join(line for said in fit_sentences(summaries) for line in screen.wrapped(said, "  ")),
        *(_precisions(pair, other, screen) for other, pair in known),
        "\n".join(line for note in tables.remarks(pairs) for line in screen.wrapped(f"note: {note}", "  ")),
    ]
    return "\n\n".join(b for b in blocks if b) + "\n"


def _differing(pairs: tables.Pairs) -> list[str]:
    same = not any(pair.configuration for pair in pairs)
    return [_SAME_SETTINGS] * same + tables.difference_sentences(pairs)


def _precisions(pair: SummaryDifferences, other: str, screen: TableScreen) -> str:
    shown = replace(tables.precision_table(pair, other), head=("", "", "a", other))
    return _titled("Precision that changed, share of the kind's time", shown, screen)


def _step_times(known: Sequence[tuple[str, SummaryDifferences]], whys: Sequence[str], screen: TableScreen) -> str:
    """A table for the runs that are compared in the same way, and below it a line for each."""
    of_title: dict[str, list[tuple[str, Comparison]]] = {}
    lines: dict[str, list[str]] = {}
    for (other, pair), why in zip(known, whys, strict=True):
        title = _step_title(pair, other)
        rows, said = of_title.setdefault(title, []), lines.setdefault(title, [])
        if pair.step_time is not None:
            rows.append((other, pair.step_time))
            said.append(_interval(pair, pair.step_time, other, screen) + why)
    blocks = []
    for title, rows in of_title.items():
        other = rows[0][0] if len(rows) == 1 else "this run"
        shown = verdict_table([("median" if len(rows) == 1 else x, step) for x, step in rows], ("a", other), title)
        blocks.append("\n".join(screen.block(shown) or screen.wrapped(title)) + "".join(lines[title]))
    return "\n".join(blocks)


def _step_title(pair: SummaryDifferences, other: str) -> str:
    if pair.step_time is None:
        return f"Step time: not recorded in both a and {other}"
    return f"Step time, mean over ranks, {pair.normalisation} ({pair.why_normalised})"


def _interval(pair: SummaryDifferences, comparison: Comparison, other: str, screen: TableScreen) -> str:
    """The ratio and its interval; why there is no verdict, and whether the recordings put it in doubt."""
    why = f": {comparison.verdict.value}: {comparison.why}" if comparison.verdict is ChangeVerdict.UNKNOWN else ""
    text = f"{other} / a {interval_text(comparison)}{why}"
    return _indented(f"{text}{', doubtful' * bool(pair.doubts)}", screen)


def _how_sure(pairs: tables.Pairs, screen: TableScreen) -> str:
    """The limits of the intervals, once, and the reasons to doubt a run's times."""
    texts = [tables.ONE_RUN_EACH] if any(pair.step_time for pair in pairs) else []
    return "".join(_indented(x, screen) for x in [*texts, *(f"doubtful: {doubt}" for doubt in tables.doubts(pairs))])


def _whys(pairs: tables.Pairs, summaries: Sequence[Summary], screen: TableScreen) -> list[str]:
    """For each pair the sentence about the part that makes the difference; empty if no part is clear."""
    if not summaries:
        return [""] * len(pairs)
    found = breakdown.steps_in_parts(tables.letters(pairs), summaries, pairs)
    per_token = breakdown.is_per_token(summaries, pairs)
    texts = [
        breakdown.explained(found, i, per_token) if pair.step_time and pair.step_time.excludes_no_change else ""
        for i, pair in enumerate(pairs, 1)
    ]
    return [_indented(text, screen) for text in texts]


def _indented(text: str, screen: TableScreen) -> str:
    return "".join(f"\n  {line}" for line in wrap(text, min(screen.width, WIDTH) - 2))


def _efficiency(pairs: tables.Pairs, summaries: Sequence[Summary], screen: TableScreen) -> str:
    """The efficiencies of a series on unlike numbers of devices; empty for other runs."""
    if not pairs[0].scaling:
        return ""
    runs = tables.letters(pairs), summaries, breakdown.rows_of(pairs)
    notes = "".join(_indented(note, screen) for note in breakdown.series_notes(*runs))
    return _titled(breakdown.CAPTION, breakdown.series_table(*runs), screen) + notes


def _titled(title: str, shown: PageTable, screen: TableScreen) -> str:
    """The table under a title of the terminal, all columns aligned left; empty without rows."""
    if not shown.rows:
        return ""
    here = fitted(replace(shown, left=len(shown.head)), screen.width)
    return "\n".join([*screen.wrapped(title, "  "), *map(screen.cut, table(here.head, here.rows, left=len(here.head)))])
