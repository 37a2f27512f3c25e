"""The tables of docs/metrics.md: the Summary's classes with their fields, the named metrics, the tables of a report."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator

from harness.analysis.metrics import MEANINGS
from harness.analysis.summary import Summary, SummaryPart, problem_texts
from harness.analysis.summary.described import constant_texts, field_texts
from harness.experiment.exercises import EXERCISES
from harness.monitor.samples import COLUMNS
from harness.report.tables import catalogue


def summary_parts(part: type[SummaryPart] = Summary) -> list[type[SummaryPart]]:
    """A class of the Summary, and those that it is made of, each once: its bases and the classes of its fields."""
    inside = [base for base in part.__bases__ if base is not SummaryPart]
    inside += [kind for info in part.model_fields.values() for kind in _classes(info.annotation)]
    below = [found for each in inside for found in summary_parts(each)]
    return list(dict.fromkeys([part, *below]))


def _classes(annotation: object) -> Iterator[type[SummaryPart]]:
    if inspect.isclass(annotation) and issubclass(annotation, SummaryPart):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes(argument)


def sections() -> str:
    """A section per class: its own text, then a row per field."""
    return "\n\n".join(map(_section, summary_parts()))


def _section(part: type[SummaryPart]) -> str:
    bases = [base for base in part.__bases__ if base is not SummaryPart]
    also = [
        f"It has the fields of [{base.__name__}](#{base.__name__.lower()}), and these:\n" for base in bases
    ]
    rows = [f"| `{name}` | {text} |" for name, text in field_texts(part).items()]
    head = f"{'##' if part is Summary else '###'} {part.__name__}"
    return "\n".join(
        [head, "", inspect.getdoc(part) or "", "", *also, "| field | meaning |", "|---|---|", *rows]
    )


def names() -> str:
    """A row per named metric: its line in a comparison and its meaning."""
    labels = catalogue.labels()
    meanings = MEANINGS | {number.name: number.meaning for number in catalogue.numbers()}
    rows = [
        f"| `{name}` | {labels.get(name, '–').strip()} | {meaning} |" for name, meaning in meanings.items()
    ]
    return "\n".join(["| name | line of `compare` | meaning |", "|---|---|---|", *rows])


def problems() -> str:
    """A row per problem that a recording can have: its words, and when it is reported."""
    whens = constant_texts(problem_texts)
    rows = [f"| {getattr(problem_texts, name)} | {when} |" for name, when in whens.items()]
    rows += [
        f"| {cls.gpus_only[0]} | Exercise {n} on a CPU. |" for n, cls in EXERCISES.items() if cls.gpus_only
    ]
    return "\n".join(["| `what` | when |", "|---|---|", *rows])


def columns() -> str:
    """A row per column of the monitor's files."""
    rows = [f"| `{name}` | {text} |" for name, text in COLUMNS.items()]
    return "\n".join(["| column | meaning |", "|---|---|", *rows])


def tables() -> str:
    """A row per file of `--csv` and `--parquet`: the columns that are shown, and their place on the page."""
    shown = {table.file.name: table for table in catalogue.TABLES if table.file is not None}
    rows = []
    for file in catalogue.files():
        table = shown.get(file.name)
        heads = [head for head in table.of([], Summary()).head if head] if table else ["–"]
        place = (table.section or table.figure) if table else ""
        rows.append(f"| `{file.name}` | {', '.join(heads)} | {place or '–'} |")
    return "\n".join(["| file | columns in terminal and page | on the page |", "|---|---|---|", *rows])
