"""Names for matplotlib, which takes a text between two dollar signs for a formula, and a wrong formula for an error.
Knows no plot."""

from __future__ import annotations

from typing import Any


def plain(text: str) -> str:
    """The text in which every dollar sign is only a dollar sign.

    >>> plain("$x$ and $frac")
    '\\\\$x\\\\$ and \\\\$frac'
    """
    return text.replace("$", r"\$")


def plain_values(value: Any) -> Any:
    """Plotly's JSON with each of its texts so."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {name: plain_values(inner) for name, inner in value.items()}
    return [plain_values(inner) for inner in value] if isinstance(value, (list, tuple)) else value
