"""A table as Markdown has it."""

from __future__ import annotations

from collections.abc import Iterable


def markdown_table(heads: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table. heads: those of the columns, with `|` between them."""
    columns = heads.count("|") + 1
    return "\n".join([f"| {heads} |", "|---" * columns + "|", *(f"| {' | '.join(map(str, row))} |" for row in rows)])
