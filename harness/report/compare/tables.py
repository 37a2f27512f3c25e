"""The tables of a comparison of two or more runs, for terminal and page. The first run, a, is the base; every pair is
another run against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from harness.analysis.compare import Comparison, MetricChange, Ratio
from harness.analysis.metrics import IDLE_LABEL
from harness.common.paths import PROGRAM
from harness.format.format import duration, metric_text, per_step, percent, rate, short
from harness.format.labels import cause_word
from harness.report.elements import Table
from harness.report.tables.catalogue import labels

Pairs = Sequence[Comparison]

SHOWN_KERNELS = 12
_BARE = frozenset({"tokens_per_s", "energy_joules"})  # their labels hold the unit


def letter(index: int) -> str:
    """The letter of the n-th run: a, b, … z, aa, bb, …"""
    return ascii_lowercase[index % 26] * (index // 26 + 1)


def letters(pairs: Pairs) -> list[str]:
    """The letters of the base and of every run against it."""
    return [letter(i) for i in range(len(pairs) + 1)]


def configuration_table(pairs: Pairs) -> Table:
    """The recorded settings that differ between runs."""
    differing = [{d.name: d for d in pair.configuration} for pair in pairs]
    rows = []
    for name in dict.fromkeys(name for found in differing for name in found):
        base = next(found[name].a for found in differing if name in found)
        others = (found[name].b if name in found else base for found in differing)
        rows.append((name, _plain(base), *map(_plain, others)))
    return Table("Settings that differ", ("", *letters(pairs)), rows, left=len(pairs) + 2)


def result_table(pairs: Pairs) -> Table:
    """The numbers with a label, per run, and each run's over the base's."""
    names = _names(pairs)
    rows = [
        (_label(pairs, label), *_cells(pairs, name), *_times(pairs, name))
        for name, label in labels().items()
        if name in names and not (label.startswith(IDLE_LABEL) and _is_nothing(in_every_run(pairs, name)))
    ]
    head = ("", *letters(pairs), *(f"{x} / a" for x in letters(pairs)[1:]))
    return Table("Numbers of each run, and their ratio to the base's", head, rows)


def _is_nothing(shares: Sequence[float | None]) -> bool:
    """Whether every run shows zero per cent."""
    return all((share or 0.0) < 0.0005 for share in shares)


def _label(pairs: Pairs, label: str) -> str:
    """The label; a cause of idle time has the name that fits the runs' kind of devices."""
    cause = label.removeprefix(IDLE_LABEL)
    return label if cause == label else IDLE_LABEL + cause_word(cause, all(pair.on_cpu for pair in pairs))


def collective_table(pairs: Pairs) -> Table:
    """Per kind and run: calls, MB and milliseconds of one rank in one step."""
    rows = [
        (kind, *_calls(pairs, kind), *_sizes(pairs, kind), *_millions(pairs, f"{kind}_ns"))
        for kind in collective_kinds(pairs)
    ]
    head = ("", *(f"{what} {x}" for what in ("calls", "MB", "ms") for x in letters(pairs)))
    return Table("Collectives, per rank and step", head, rows)


def _calls(pairs: Pairs, kind: str) -> list[str]:
    return ["–" if value is None else per_step(value) for value in in_every_run(pairs, f"{kind}_count")]


def _millions(pairs: Pairs, name: str) -> list[str]:
    return ["–" if value is None else rate(value * 1e-6) for value in in_every_run(pairs, name)]


def _sizes(pairs: Pairs, kind: str) -> list[str]:
    """Megabytes of every run; a lower bound (≥) if the size of some calls was not recorded."""
    sizes = zip(_millions(pairs, f"{kind}_bytes"), _millions(pairs, f"{kind}_least_bytes"), strict=True)
    return [f"≥ {at_least}" if size == "–" != at_least else size for size, at_least in sizes]


def collective_kinds(pairs: Pairs) -> list[str]:
    """Kinds of collectives that any of the runs issued."""
    return [n.removesuffix("_count") for n in _names(pairs) if n.endswith("_count")]


def kernel_rows(comparison: Comparison, other: str, most: int, width: int) -> list[tuple[str, ...]]:
    """Kernels that only one of the two runs launched, the longest first."""
    shown = comparison.kernels[:most]
    return [
        (f"only in {'a' if k.only_in == 'a' else other}", percent(k.share), k.precision or k.kind, name)
        for k, name in zip(shown, short([k.name for k in shown], width), strict=True)
    ]


def precision_table(comparison: Comparison, other: str) -> Table:
    """Kinds of work whose precision differs between the two runs."""
    rows = [(p.kind, p.precision, percent(p.share_a), percent(p.share_b)) for p in comparison.precisions]
    caption = f"Precision that changed from a to {other}, share of the kind's time"
    return Table(caption, ("kind", "precision", "a", other), rows, left=2)


def remarks(pairs: Pairs) -> list[str]:
    """Every note once, with its run's letter."""
    return _lettered(pairs, [pair.notes for pair in pairs])


def _lettered(pairs: Pairs, of_each: Sequence[Sequence[str]]) -> list[str]:
    """Every text about the pairs once: a leading `b: `, as a pair names its second run, becomes the run's letter."""
    every = [
        f"{other}: {text.removeprefix('b: ')}" if text.startswith("b: ") else text
        for other, texts in zip(letters(pairs)[1:], of_each, strict=True)
        for text in texts
    ]
    return list(dict.fromkeys(every))


ONE_RUN_EACH = (
    "The interval is of one run each. It shows whether the steps of these runs differ, not whether the commands do: "
    f"`{PROGRAM} check A B` compares several runs of each."
)


def conclusion(ratio: Ratio, other: str, doubtful: bool = False) -> str:
    """The conclusion about the steps of one run of each."""
    text = f"{other}'s steps are {percent(abs(ratio.ratio - 1))} " if is_clear(ratio) else ""
    judged = doubtful and not ratio.verdict.startswith("no verdict")
    return f"{text}{ratio.verdict}{', doubtful' if judged else ''}"


def doubts(pairs: Pairs) -> list[str]:
    """Every reason to doubt a run's times once, with the run's letter."""
    return _lettered(pairs, [pair.doubts for pair in pairs])


def is_clear(ratio: Ratio) -> bool:
    """Whether one of the two runs is the faster one."""
    return ratio.verdict in ("slower", "faster")


def medians(comparison: Comparison, ratio: Ratio) -> str:
    """The two medians with their unit."""
    per = "" if comparison.normalisation == "per step" else " per token"
    return f"{duration(ratio.a_ns)}{per} → {duration(ratio.b_ns)}{per}"


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


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)
