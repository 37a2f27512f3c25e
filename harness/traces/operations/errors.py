"""What an operation timeline lacks, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.common.errors import RequestError
from harness.common.printable import printable
from harness.traces.operations.vocabulary import COLUMNS

_MOST_NAMED = 20


class ColumnsError(RequestError):
    """A table without a column that every timeline of operations has."""


def lacks(path: Path, missing: Sequence[str], found: Sequence[str]) -> ColumnsError:
    """The error of a file without these columns. found: the heads that it has."""
    wanted = [f"{COLUMNS[name].meaning} ({', '.join(COLUMNS[name].names)})" for name in missing]
    heads = [printable(head)[:60] for head in found[:_MOST_NAMED]]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    there = f"its columns are {', '.join(heads)}{more}" if found else "it has no columns"
    return ColumnsError(
        f"{printable(str(path))}: is not a timeline of operations: it lacks a column for {' and for '.join(wanted)}; "
        f"{there}"
    )
