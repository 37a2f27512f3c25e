"""What every part of the Summary is: a struct whose fields have their text below them, as documents say it."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from math import isfinite, isnan
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from harness.analysis.summary.problem_texts import BUSY, CROWDED


@cache  # to find a class in its module takes milliseconds
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


_Part = TypeVar("_Part", bound="SummaryPart")


class SummaryPart(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of the summary. A reader refuses unknown fields instead of ignoring them. The text below a field is its
    line in `help numbers`; the text of a class is its section's. The methods are named as those of pydantic's models,
    which people's own files are read with.

    NaN, such as a loss that diverged, is written as text: JSON has no number for it, and null would not be read back.
    """

    @classmethod
    def model_validate(cls: type[_Part], data: Any) -> _Part:
        """From plain data. Raises msgspec.ValidationError: they are not such a part."""
        return msgspec.convert(data, cls, strict=False)

    @classmethod
    def model_validate_json(cls: type[_Part], text: str | bytes) -> _Part:
        """From JSON. Raises msgspec.DecodeError: it is none, or not such a part."""
        return cls.model_validate(msgspec.json.decode(text))

    def model_copy(self: _Part, *, update: Mapping[str, Any]) -> _Part:
        """The same with other fields."""
        return msgspec.structs.replace(self, **update)

    def model_dump(self) -> dict[str, Any]:
        """As plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return plain

    def model_dump_json(self, *, indent: int = 0) -> str:
        """As JSON, by default on one line."""
        text = msgspec.json.encode(_with_texts(self.model_dump()))
        return (msgspec.json.format(text, indent=indent) if indent else text).decode()


def why_invalid(exception: Exception) -> str:
    """One sentence of what a reader refuses: the field, and what is wrong with it."""
    what, _, where = str(exception).partition(" - at `$")
    return f"{where.strip('.`')}: {what}" if where else what


def parts_of(cls: type[SummaryPart]) -> list[type[SummaryPart]]:
    """A class of the Summary, and those that it is made of, each once: its bases and the classes of its fields."""
    inside = [base for base in cls.__bases__ if base is not SummaryPart]
    inside += [kind for field in typing.get_type_hints(cls).values() for kind in _classes(field)]
    below = [found for each in inside for found in parts_of(each)]
    return list(dict.fromkeys([cls, *below]))


def part_texts(cls: type[SummaryPart]) -> dict[str, str]:
    """The text of each field, also of inherited ones."""
    own = [each for each in cls.__mro__ if issubclass(each, SummaryPart) and each is not SummaryPart]
    return {name: text for each in own for name, text in field_texts(each).items()}


def _classes(annotation: object) -> Iterator[type[SummaryPart]]:
    if inspect.isclass(annotation) and issubclass(annotation, SummaryPart):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _classes(argument)


def _with_texts(value: Any) -> Any:
    """The same data with texts instead of the numbers that JSON does not have."""
    if isinstance(value, float):
        return value if isfinite(value) else "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _with_texts(each) for key, each in value.items()}
    return [_with_texts(each) for each in value] if isinstance(value, list) else value


class Window(str, Enum):
    """Which stretch of time the numbers are about."""

    STEPS = "steps"  # first counted step's start to the last one's end; without steps as GPU
    GPU = "gpu"  # first device event's start to the last one's end, nothing trimmed


class RecordingVerdict(str, Enum):
    """How far a reader can trust the numbers; the worst is the last."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    UNUSABLE = "unusable"


class Withheld(SummaryPart, kw_only=True):
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


class CodeLocation(SummaryPart, kw_only=True):
    """A place in a program."""

    file: str
    """As recorded."""
    line: int | None = None
    """Of the function's beginning, if recorded; of a sampled line its own."""
    function: str
    """Its name."""


class Problem(SummaryPart, kw_only=True):
    """A defect of the recording itself, to read before any number.
    `help numbers problems` lists all."""

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

    @classmethod
    def remark(cls, what: str, evidence: str) -> Problem:
        """A problem that leaves the numbers good."""
        return cls(severity=RecordingVerdict.GOOD, what=what, evidence=evidence)


class Quality(SummaryPart, kw_only=True):
    """How reliable the recording is. Read this first."""

    verdict: RecordingVerdict = RecordingVerdict.GOOD
    """The worst severity of any problem. An unreadable file among good ones makes the job `doubtful`."""
    problems: list[Problem] = []
    """Defects of the recording, worst first."""
    withheld: list[Withheld] = []
    """The numbers that are not given."""

    @property
    def disturbances(self) -> list[Problem]:
        """The problems that other programs on the machine, or more ranks than cores, make."""
        return [problem for problem in self.problems if problem.what in (BUSY, CROWDED)]


class TraceSource(SummaryPart, kw_only=True):
    """One file that was read."""

    path: str
    """The file."""
    tool: str
    """`nsys`, `kineto`, or `rocpd`: a database of rocprofv3 ([AMD GPUs](development/amd.md))."""
    tool_version: str | None = None
    """As recorded."""
    rank: int | None = None
    """From the trace. nsys: from NCCL's data or the program's range `epoch_E-rank_R`. rocprofv3: `RANK` of
    the recorded environment. Else from the file's name; of nsys also from names that differ in one number alone, which
    counts up from 0 (`report.0`, `report.1`). Or from numbers in the names of folders with one trace each (`rank_0`,
    `rank_1`; `node0-gpu0` to `node1-gpu3`), if these are as many as the largest group in the collectives has ranks."""
    world_size: int | None = None
    """From the trace. nsys: else, of reports in one folder with such names, how many there are, if they were recorded
    at one time."""
    host: str | None = None
    """From the trace."""
    pid: int | None = None
    """From the trace."""
    device_names: dict[int, str] = {}
    """By device number."""
    notes: list[str] = []
    """Which parts of the file the reader saved, and which it could not read."""
