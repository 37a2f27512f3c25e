"""The text below each field of a class, or constant of a module, as its source has it. Docs and schemas read it, so
that an import pays nothing for it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, PlainSerializer


def field_texts(cls: type) -> dict[str, str]:
    """The text of each field that `cls` declares itself, in order, as one line; empty for a field without a text."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return dict(_fields(tree.body))


def constant_texts(module: ModuleType) -> dict[str, str]:
    """The text below each constant of `module`, in order, as one line."""
    return dict(_fields(ast.parse(inspect.getsource(module)).body))


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if "ClassVar" not in ast.dump(kind):
                yield name, _text(below)
            case ast.Assign(targets=[ast.Name(id=name)]) if _text(below):
                yield name, _text(below)


def _text(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


_Value = TypeVar("_Value")


def _by_text(table: dict[int, _Value]) -> dict[str, _Value]:
    return {str(number): value for number, value in table.items()}


# A table by number, such as a rank's, is written with its numbers as texts: JSON has no other keys.
Numbered = Annotated[dict[int, _Value], PlainSerializer(_by_text)]


class SummaryPart(BaseModel):
    """A piece of the summary. A reader refuses unknown fields instead of ignoring them. The text below a field is its
    row in docs/metrics.md and its description in the JSON schema; the text of a class is its section's.

    NaN, such as a loss that diverged, is written as text: JSON has no number for it, and null would not be read back.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core))
        texts = {
            name: text
            for each in cls.__mro__
            if each.__module__.startswith(__package__)
            for name, text in field_texts(each).items()
        }
        for name, field in schema.get("properties", {}).items():
            field["description"] = texts[name]
        return schema


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
    """`idle_ns` and `busy_fraction`: more than half of the steps, or a step between counted ones, have no work on any
    device; or work starts after the last record of a file that was cut off, whose records are not in the order of time.
    `communication_ns`, `exposed_communication_ns`, `overlapped_communication_ns` and `overlap_fraction`: CUDA graphs
    that were recorded whole are over 5 % of the kernels' time (they count as compute). `collectives.waiting_ns`: a
    member of a group was not read. `collectives.bus_bandwidth_gb_per_s`: the size of a group was not recorded, and its
    ranks were not all read or could not be matched. `collective_fits.alpha_ns, beta_ns_per_byte`: the points do not lie
    on a line (see CollectiveFit). `pipeline.stages, expected_bubble_fraction`: a stage may be missing (see Pipeline).
    `pop`: it would mislead (see PopEfficiency). `idle_causes`, `findings`, `findings.host`, `replay.what_ifs`: the
    recording is of a kind that cannot carry them; a sample and missing work carry no idle time and no communication
    either. `findings` and `replay.what_ifs` also before a mystery is revealed. `findings.tiny-kernels`: the profiler
    alone explains the loss (see ProfilerCost)."""
    reason: str
    """One sentence."""


class CodeLocation(SummaryPart):
    """A place in a program."""

    file: str
    """As recorded."""
    line: int | None = None
    """Of the function's beginning, if recorded; of a sampled line its own."""
    function: str
    """Its name."""


class Problem(SummaryPart):
    """A defect of the recording itself, to read before any number.
    [Problems of a recording](#problems-of-a-recording) lists all."""

    severity: RecordingVerdict
    """`good` (a remark), `doubtful`, `unusable`."""
    what: str
    """One of the texts of the list."""
    evidence: str
    """The file or the rank, and the count."""

    @classmethod
    def doubt(cls, what: str, evidence: str) -> Problem:
        """A problem that makes the numbers doubtful."""
        return cls(severity=RecordingVerdict.DOUBTFUL, what=what, evidence=evidence)


class Quality(SummaryPart):
    """How reliable the recording is. Read this first."""

    verdict: RecordingVerdict = RecordingVerdict.GOOD
    """The worst severity of any problem. An unreadable file among good ones makes the job `doubtful`."""
    # Summaries that were written before the rename have `findings`, which are causes of lost time only.
    problems: list[Problem] = Field(default_factory=list, validation_alias=AliasChoices("problems", "findings"))
    """Defects of the recording, worst first. Older summaries, which are still read, have `findings`."""
    withheld: list[Withheld] = Field(default_factory=list)
    """The numbers that are not given."""


class TraceSource(SummaryPart):
    """One file that was read."""

    path: str
    """The file."""
    tool: str
    """`nsys`, `kineto`, `rocpd`: a database of rocprofv3 ([AMD GPUs](amd.md)), or `operations`: a timeline of them."""
    tool_version: str | None = None
    """As recorded."""
    rank: int | None = None
    """From the trace. nsys: from the program's range `epoch_E-rank_R`. rocprofv3: `RANK` of the recorded environment.
    Else from the file's name."""
    world_size: int | None = None
    """From the trace."""
    host: str | None = None
    """From the trace."""
    pid: int | None = None
    """From the trace."""
    device_names: Numbered[str] = Field(default_factory=dict)
    """By device number."""
    notes: list[str] = Field(default_factory=list)
    """Which parts of the file the reader saved, and which it could not read."""
