"""The tables of a comparison, for terminal and page. The first run, a, is the base of every pair."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from harness.analysis.labels import cause_word
from harness.analysis.metrics import IDLE_LABEL, METRICS
from harness.analysis.summary import Summary
from harness.common.display.format import duration, metric_text, middle, per_step, percent, rate, short
from harness.common.display.text import first_of, how_many
from harness.common.paths import COMMAND
from harness.compare.comparison import Difference
from harness.compare.moved import MovedStatistic, What
from harness.compare.summaries import EnvironmentChanges, MetricChange, SummaryDifferences
from harness.report.elements import PageTable, Section
from harness.report.tables.table import setting
from harness.report.tables.time import kind_label

Pairs = Sequence[SummaryDifferences]

_BARE = frozenset({"tokens_per_s", "energy_joules"})  # their labels hold the unit
ONE_RUN_EACH = (
    "The interval is of one run each. It shows whether the steps of these runs differ, not whether the commands do: "
    f"`{COMMAND} check A B` compares several runs of each."
)
_IN_TERMINAL = 5  # ranges and kernels with the largest changes
_WIDTH = 90
_IN_SENTENCE, _VALUE = 6, 30  # differences of a sentence; characters of a value there
_KINDS: tuple[tuple[What, str, str], ...] = (
    ("node", "Nodes of both runs: median step", "ranks"),
    ("range", "Ranges: time on the host, per rank and step", "calls"),
    ("kernel", "Kernels: time on the device, per rank and step", "calls"),
)
_SMALL = 0.003  # share of all work: kinds below it in every run are left out


def letter(index: int) -> str:
    """The letter of the n-th run: a, b, … z, aa, bb, …"""
    return ascii_lowercase[index % 26] * (index // 26 + 1)


def letters(pairs: Pairs) -> list[str]:
    return [letter(i) for i in range(len(pairs) + 1)]


def others(pairs: Pairs) -> list[tuple[str, SummaryDifferences]]:
    """The letter of every run but the base, with its comparison to the base."""
    return list(zip(letters(pairs)[1:], pairs, strict=True))


def configuration_table(pairs: Pairs) -> PageTable:
    """The recorded settings that differ between runs."""
    differing = [{d.name: d for d in pair.configuration} for pair in pairs]
    rows = []
    for name in dict.fromkeys(name for found in differing for name in found):
        base = next(found[name].a for found in differing if name in found)
        rows.append((name, *map(setting, (base, *(found[name].b if name in found else base for found in differing)))))
    return PageTable("Settings that differ", ("", *letters(pairs)), rows, left=len(pairs) + 2)


def difference_sentences(pairs: Pairs) -> list[str]:
    """Of each pair: what was changed, what differs besides, and what only one of the two recorded."""
    return [
        f"{other}: {text}" if len(pairs) > 1 else text
        for other, pair in others(pairs)
        for text in environment_sentences(pair.configuration, pair.environment, other)
    ]


def environment_sentences(changed: Sequence[Difference], found: EnvironmentChanges, other: str) -> Iterator[str]:
    """What was changed, what differs besides, and what only one of the two recorded. other: the name of the second."""
    unused = [f"{how_many(len(found.unused), 'package')} that neither run used"] if found.unused else []
    if asked := [*changed, *found.asked]:
        yield f"Changed: {', and '.join([_first_changes(asked), *(unused if found.asked else [])])}."
    if besides := [*filter(None, [_first_changes(found.besides)]), *([] if found.asked else unused)]:
        yield f"Not asked for, but different: {', and '.join(besides)}."
    elif found.whole:
        yield "Not asked for, but different: nothing."
    if found.one_sided:
        named = [f"{difference.name} ({'a' if difference.b is None else other})" for difference in found.one_sided]
        yield f"Recorded in one of them only: {first_of(named, _IN_SENTENCE)}."


def _first_changes(differences: Sequence[Difference]) -> str:
    return first_of([f"{d.name} {_value(d.a)} → {_value(d.b)}" for d in differences], _IN_SENTENCE)


def _value(value: object) -> str:
    return middle(setting(value), _VALUE)


def result_table(pairs: Pairs) -> PageTable:
    """The numbers with a label, per run, and each run's over the base's."""
    names = _names(pairs)
    rows = [
        (_label(pairs, metric.label), *cells, *_times(pairs, metric.name))
        for metric in METRICS
        if metric.label
        and metric.name in names
        and not set(cells := list(_cells(pairs, metric.name))) <= {"0.0 %", "–"}
    ]
    head = ("", *letters(pairs), *(f"{x} / a" for x, _ in others(pairs)))
    return PageTable("Numbers of each run, and their ratio to the base's", head, rows)


def _label(pairs: Pairs, label: str) -> str:
    """The label; a cause of idle time has the name that fits the runs' kind of devices."""
    cause = label.removeprefix(IDLE_LABEL)
    return label if cause == label else IDLE_LABEL + cause_word(cause, all(pair.on_cpu for pair in pairs))


def collective_table(pairs: Pairs) -> PageTable:
    """Per kind and run: calls, MB and milliseconds of one rank in one step."""
    rows = []
    for kind in collective_kinds(pairs):
        calls = map(per_step, in_every_run(pairs, f"{kind}_count"))
        rows.append((kind, *calls, *_sizes(pairs, kind), *_millions(pairs, f"{kind}_ns")))
    head = ("", *(f"{what} {x}" for what in ("calls", "MB", "ms") for x in letters(pairs)))
    return PageTable("Collectives, per rank and step", head, rows)


def _millions(pairs: Pairs, name: str) -> list[str]:
    return [rate(None if value is None else value * 1e-6) for value in in_every_run(pairs, name)]


def _sizes(pairs: Pairs, kind: str) -> list[str]:
    """Megabytes of every run; a lower bound (≥) if the size of some calls was not recorded."""
    sizes = zip(_millions(pairs, f"{kind}_bytes"), _millions(pairs, f"{kind}_least_bytes"), strict=True)
    return [f"≥ {at_least}" if size == "–" != at_least else size for size, at_least in sizes]


def collective_kinds(pairs: Pairs) -> list[str]:
    return [n.removesuffix("_count") for n in _names(pairs) if n.endswith("_count")]


def precision_table(comparison: SummaryDifferences, other: str) -> PageTable:
    """Kinds of work whose precision differs between the two runs."""
    rows = [(p.kind, p.precision, percent(p.share_a), percent(p.share_b)) for p in comparison.precisions]
    caption = f"Precision that changed from a to {other}, share of the kind's time"
    return PageTable(caption, ("kind", "precision", "a", other), rows, left=2)


def remarks(pairs: Pairs) -> list[str]:
    """Every note once, with its run's letter."""
    return _lettered(pairs, [pair.notes for pair in pairs])


def _lettered(pairs: Pairs, of_each: Sequence[Sequence[str]]) -> list[str]:
    """Every text about the pairs once: a leading `b: `, as a pair names its second run, becomes the run's letter."""
    every = [(other, text) for other, texts in zip(letters(pairs)[1:], of_each, strict=True) for text in texts]
    return list(dict.fromkeys(re.sub("^b: ", f"{other}: ", text) for other, text in every))


def doubts(pairs: Pairs) -> list[str]:
    """Every reason to doubt a run's times once, with the run's letter."""
    return _lettered(pairs, [pair.doubts for pair in pairs])


def in_every_run(pairs: Pairs, name: str) -> list[float | None]:
    """One number in every run, the base first."""
    found = [next((c for c in pair.changes if c.name == name), None) for pair in pairs]
    base = next((c.a for c in found if c is not None), None)
    return [base, *(c.b if c is not None else base for c in found)]


def _names(pairs: Pairs) -> dict[str, None]:
    """The names of numbers that are not zero in every run."""
    return dict.fromkeys(c.name for pair in pairs for c in pair.changes if c.a or c.b)


def _text(name: str, value: float) -> str:
    return f"{value:,.0f}" if name in _BARE else metric_text(name, value)


def _cells(pairs: Pairs, name: str) -> Iterator[str]:
    return ("–" if value is None else _text(name, value) for value in in_every_run(pairs, name))


def _times(pairs: Pairs, name: str) -> Iterator[str]:
    """Each run's value divided by the base's; empty if the base's value is shown as zero."""
    for pair in pairs:
        change: MetricChange | None = next((c for c in pair.changes if c.name == name), None)
        seen = change is not None and change.a is not None and set("123456789") & set(_text(name, change.a))
        yield f"{rate(change.ratio)}×" if change is not None and seen and change.ratio is not None else ""


def moved_section(pairs: Sequence[SummaryDifferences]) -> Section:
    """Nodes, ranges and kernels of each pair, a table each."""
    tables = [table for other, pair in others(pairs) for table in _tables(pair, other)]
    lead = (
        "The largest changes in milliseconds are first. Ranges and kernels that changed by less than 0.5 % of a's step "
        "are left out."
    )
    return Section("moved", "Largest changes", lead, tables=tables)


def _tables(pair: SummaryDifferences, other: str) -> list[PageTable]:
    found = []
    for what, caption, calls in _KINDS:
        rows = [x for x in pair.moved if x.what == what]
        if rows:
            head = (what, "a", other, f"{other} − a", f"{calls} a", f"{calls} {other}")
            found.append(PageTable(f"{caption}, {other} against a", head, _rows(rows)))
    return found


def _rows(moved_statistics: Sequence[MovedStatistic], width: int = _WIDTH) -> list[tuple[str, ...]]:
    names = short([x.name for x in moved_statistics], width)
    return [
        (name, duration(x.a_ns), duration(x.b_ns), signed(x.by_ns), per_step(x.a_calls), per_step(x.b_calls))
        for name, x in zip(names, moved_statistics, strict=True)
    ]


def signed(ns: float) -> str:
    """A difference of durations with its sign.

    >>> signed(1_500_000), signed(-20_000), signed(0)
    ('+1.50 ms', '-20.0 µs', '0 ns')
    """
    return f"+{duration(ns)}" if ns > 0 else duration(ns)


def moved_in_short(pair: SummaryDifferences, other: str) -> PageTable:
    rows = sorted((x for x in pair.moved if x.what != "node"), key=lambda x: -abs(x.by_ns))[:_IN_TERMINAL]
    cells = [(x.what, *row[:4]) for x, row in zip(rows, _rows(rows, 60), strict=True)]
    return PageTable("", ("", "", "a", other, f"{other} − a"), cells)


def kinds_section(labels: Sequence[str], summaries: Sequence[Summary], pairs: Sequence[SummaryDifferences]) -> Section:
    """Time per kind of work, per step and rank, and which precision changed."""
    title = "Kernels by kind"
    runs = [(i, each) for i, each in enumerate(summaries) if each.kinds and each.steps.counted]
    kinds = list(dict.fromkeys(kind_label(k) for _, s in runs for k in s.kinds if k.share >= _SMALL))
    if not kinds:
        return Section("kinds", title)
    times = [(labels[i], {kind_label(k): k.duration_ns / s.steps.counted / 1e6 for k in s.kinds}) for i, s in runs]
    rows = [[kind, *(rate(known.get(kind, 0.0)) for _, known in times)] for kind in kinds]
    caption = "Time in one step of one rank (ms); kernels that overlap both count"
    numbers = PageTable(caption, ("kind", *(label for label, _ in times)), rows)
    precisions = (precision_table(pair, other) for other, pair in others(pairs))
    return Section("kinds", title, tables=[numbers, *(shown for shown in precisions if shown.rows)])


def collectives_section(pairs: Pairs) -> Section:
    """Per kind of collective and run: count, bytes and time of a step."""
    numbers = collective_table(pairs)
    return Section("collectives", "Collectives", tables=[numbers] if numbers.rows else [])
