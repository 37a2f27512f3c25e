"""Cells of a CSV file: a spreadsheet must not take a name for a formula, nor a terminal for a command. Knows no table.

A trace can name a kernel `=HYPERLINK(…)`, and a spreadsheet runs it when the file is opened. OWASP's remedy is a quote
before such a text; a number stays a number. `text_of_cell` takes the quote away, for programs that read the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from harness.common.printable import printable

_BEGINS_A_FORMULA = re.compile(
    r"'*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]"
)  # the last four: as Japanese ones are typed


def cells(row: Iterable[Any]) -> list[Any]:
    """The row as it is written.

    >>> cells(["=1+1", "gemm", -1.5, "-1.5", None, "'=x"])
    ["'=1+1", 'gemm', -1.5, '-1.5', None, "''=x"]
    """
    return [_cell(value) if isinstance(value, str) else value for value in row]


def _cell(text: str) -> str:
    return ("'" if _is_formula(text) else "") + printable(text)


def text_of_cell(cell: str) -> str:
    """What was written as this cell.

    >>> [text_of_cell(cell) for cell in ("'=1+1", "'quoted'", "''=x", "-1.5")]
    ['=1+1', "'quoted'", "'=x", '-1.5']
    """
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _is_formula(text: str) -> bool:
    return _BEGINS_A_FORMULA.match(text) is not None and not _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
