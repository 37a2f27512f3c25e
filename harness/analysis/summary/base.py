"""What every part of a Summary is made of, and how far a recording can be believed. Knows no measurement."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

Value = TypeVar("Value")


def _by_text(table: dict[int, Value]) -> dict[str, Value]:
    return {str(number): value for number, value in table.items()}


# A table by number, such as a rank's, is written with its numbers as texts: JSON has no other keys.
Numbered = Annotated[dict[int, Value], PlainSerializer(_by_text)]


class SummaryPart(BaseModel):
    """A piece of the summary. Unknown fields are refused: no reader ignores what it does not know.

    NaN, such as a loss that diverged, is written as text: JSON has no number for it, and null would not be read back.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Window(str, Enum):
    """Which stretch of time the numbers are about."""

    STEPS = "steps"  # first counted step's start to the last one's end; without steps as GPU
    GPU = "gpu"  # first device event's start to the last one's end, nothing trimmed


class Verdict(str, Enum):
    """How far the numbers can be believed."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    UNUSABLE = "unusable"


class Withheld(SummaryPart):
    """A number that was not given, because the data under it does not carry it."""

    field: str
    reason: str


class Finding(SummaryPart):
    """Something about the recording itself that a reader must know before any number."""

    severity: Verdict
    what: str
    evidence: str


class Quality(SummaryPart):
    """Read this first."""

    verdict: Verdict = Verdict.GOOD
    findings: list[Finding] = Field(default_factory=list)
    withheld: list[Withheld] = Field(default_factory=list)


class TraceSource(SummaryPart):
    """One file that was read."""

    path: str
    tool: str
    tool_version: str | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    device_names: Numbered[str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
