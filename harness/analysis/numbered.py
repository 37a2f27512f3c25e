"""A table by number, such as a rank's, that leaves a document with its numbers as texts: JSON has no other keys, and
data frames take no other. Knows no document."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import PlainSerializer

Value = TypeVar("Value")


def _by_text(table: dict[int, Value]) -> dict[str, Value]:
    return {str(number): value for number, value in table.items()}


Numbered = Annotated[dict[int, Value], PlainSerializer(_by_text)]
