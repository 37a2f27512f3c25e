"""The efficiencies of several runs side by side, and how compute scales from the smallest run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.analysis.compare import Comparison
from harness.analysis.scaling import Scaling, how_it_scales
from harness.analysis.summary import Summary
from harness.format.format import percent, rate
from harness.report.elements import Table
from harness.report.tables.efficiency import METRICS, efficiency_label

CAPTION = "Efficiency as POP defines it; an indented efficiency is a factor of the one above it"
_NOT_KNOWN = "not known"


def rows_of(pairs: Sequence[Comparison]) -> list[Scaling]:
    """The places in their series of all compared runs, the base's first."""
    return [pairs[0].scaling[0], *(pair.scaling[1] for pair in pairs)]


def series_table(names: Sequence[str], summaries: Sequence[Summary], rows: Sequence[Scaling] = ()) -> Table:
    """A column per run. With `rows` also its devices and work, and what follows from the smallest run's compute."""
    of_runs: list[tuple[str, list[str]]] = [
        (efficiency_label(field, "· "), [_value(s, field) for s in summaries]) for field in METRICS
    ]
    if rows:
        unit = f"{rows[0].unit} per step" if rows[0].unit else "work per step"
        of_runs = [
            ("devices", [_or_unknown(row.devices, rate) for row in rows]),
            (unit, [_or_unknown(row.work_per_step, rate) for row in rows]),
            ("global efficiency", [_or_unknown(row.global_efficiency, percent) for row in rows]),
            (
                "· computation scalability",
                [_or_unknown(row.computation_scalability, percent) for row in rows],
            ),
            *((f"· {label}", cells) for label, cells in of_runs),
        ]
    return Table(CAPTION, ("", *names), [(label, *cells) for label, cells in of_runs])


def _value(s: Summary, field: str) -> str:
    return _or_unknown(getattr(s.pop, field) if s.pop is not None else None, percent)


def _or_unknown(value: float | None, text: Callable[[float], str]) -> str:
    return _NOT_KNOWN if value is None else text(value)


def series_notes(
    names: Sequence[str], summaries: Sequence[Summary], rows: Sequence[Scaling] = ()
) -> list[str]:
    """How the series scales, relative to which run, and why numbers are not known."""
    return [*(_scaling_notes(names, rows) if rows else ()), *_split_notes(names, summaries)]


def _split_notes(names: Sequence[str], summaries: Sequence[Summary]) -> Iterator[str]:
    why = [(name, s.pop.split_unknown) for name, s in zip(names, summaries, strict=True) if s.pop is not None]
    for reason, of in _by_reason(why):
        yield f"Serialisation and transfer are not known for {of}: {reason}"


def _by_reason(reasons: Sequence[tuple[str, str | None]]) -> list[tuple[str, str]]:
    """Each reason once, with the names of the runs that have it."""
    found: dict[str, list[str]] = {}
    for name, reason in reasons:
        if reason is not None:
            found.setdefault(reason, []).append(name)
    return [(reason, ", ".join(of)) for reason, of in found.items()]


def _scaling_notes(names: Sequence[str], rows: Sequence[Scaling]) -> Iterator[str]:
    smallest = min((row.devices, i) for i, row in enumerate(rows) if row.devices)[1]
    if how := how_it_scales(rows):
        yield (
            f"{how[0].upper()}{how[1:]}. Computation scalability: the compute time of {names[smallest]}'s devices "
            "per unit of work, divided by this run's"
        )
    for reason, of in _by_reason([(name, row.unknown) for name, row in zip(names, rows, strict=True)]):
        yield f"Computation scalability is not known for {of}: {reason}"
