"""What every part of a Summary is made of, and how far a reader can trust a recording. Knows no measurement."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PlainSerializer

_Value = TypeVar("_Value")


def _by_text(table: dict[int, _Value]) -> dict[str, _Value]:
    return {str(number): value for number, value in table.items()}


# A table by number, such as a rank's, is written with its numbers as texts: JSON has no other keys.
Numbered = Annotated[dict[int, _Value], PlainSerializer(_by_text)]


class SummaryPart(BaseModel):
    """A piece of the summary. A reader refuses unknown fields instead of ignoring them.

    NaN, such as a loss that diverged, is written as text: JSON has no number for it, and null would not be read back.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Window(str, Enum):
    """Which stretch of time the numbers are about."""

    STEPS = "steps"  # first counted step's start to the last one's end; without steps as GPU
    GPU = "gpu"  # first device event's start to the last one's end, nothing trimmed


class RecordingVerdict(str, Enum):
    """How far a reader can trust the numbers; the worst is the last."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    UNUSABLE = "unusable"


class Withheld(SummaryPart):
    """A number that is not given, because the recording is not good enough for it."""

    field: str
    reason: str


class Problem(SummaryPart):
    """Something about the recording itself that a reader must know before any number."""

    severity: RecordingVerdict
    what: str
    evidence: str

    @classmethod
    def doubt(cls, what: str, evidence: str) -> Problem:
        """A problem that makes the numbers doubtful."""
        return cls(severity=RecordingVerdict.DOUBTFUL, what=what, evidence=evidence)


class Quality(SummaryPart):
    """Read this first."""

    verdict: RecordingVerdict = RecordingVerdict.GOOD
    # Summaries that were written before the rename have `findings`, which are causes of lost time only.
    problems: list[Problem] = Field(
        default_factory=list, validation_alias=AliasChoices("problems", "findings")
    )
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
