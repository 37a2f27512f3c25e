"""The files `memory/rank<R>.json` of a run as a part of its Summary. A file is input from others: bounded, and
validated before anything is taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.analysis.summary import (
    CodeLocation,
    Memory,
    MemoryHolder,
    MemoryMoment,
    MemoryRank,
    MemoryTimeline,
    Problem,
    problem_texts,
)
from harness.common.display.format import amount
from harness.common.display.printable import printable
from harness.common.run_folder.memory_snapshot import CATEGORIES, MOST_HOLDERS, MOST_POINTS, MOST_STEPS
from harness.common.run_folder.run_files import MEMORY_SNAPSHOTS
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system.bounded_read import BoundedReadError, parse_json
from harness.run import why_invalid

Amount = Annotated[int, Field(ge=0, lt=1 << 60, strict=True)]  # bytes or nanoseconds
Text = Annotated[str, Field(max_length=1000), AfterValidator(printable)]
Category = Literal[
    "weights", "gradients", "optimizer", "activations", "buffers", "inputs", "temporary", "other"
]  # CATEGORIES


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)


Line = tuple[Text, Annotated[int, Field(ge=0, lt=1 << 31, strict=True)], Text]  # file, line, function


class _Holder(_Shape):
    category: Category
    range: Text
    module: Text
    bytes: Amount
    blocks: Amount
    where: Line | None = None


class _Moment(_Shape):
    range: Text
    module: Text
    operator: Text
    time_ns: Amount
    step: Amount | None
    bytes: dict[Category, Amount]
    blocks: Amount
    holders: list[_Holder] = Field(max_length=MOST_HOLDERS)
    where: Line | None = None
    error: Text | None = None


class _Step(_Shape):
    step: Amount
    start_ns: Amount


class _Allocator(_Shape):
    allocated_bytes: Amount
    reserved_bytes: Amount
    inactive_split_bytes: Amount | None = None
    peak_allocated_bytes: Amount | None = None


class _MemoryDocument(_Shape):
    version: Literal[1]  # VERSION
    rank: Annotated[int, Field(ge=0, lt=1 << 24, strict=True)]
    device: Literal["cpu", "cuda"]
    complete: bool
    in_profiled_steps: bool
    steps: list[_Step] = Field(max_length=MOST_STEPS)
    times_ns: list[Amount] = Field(max_length=MOST_POINTS)
    bytes: dict[Category, list[Amount]]
    peak: _Moment | None
    failure: _Moment | None
    allocator: _Allocator | None

    @model_validator(mode="after")
    def _lines_are_of_one_length(self) -> _MemoryDocument:
        if any(len(line) != len(self.times_ns) for line in self.bytes.values()):
            raise ValueError("the lines of its timeline differ in length")
        if self.times_ns != sorted(self.times_ns):
            raise ValueError("the times of its timeline are out of order")
        return self


def _document(text: str) -> _MemoryDocument:
    try:
        return _MemoryDocument.model_validate(parse_json(text))
    except ValueError as error:
        raise BoundedReadError(why_invalid(error)) from None


MEMORY_SNAPSHOTS_FILE = MEMORY_SNAPSHOTS.holding(_document)


def read_memory(files: Sequence[Path]) -> tuple[Memory | None, list[Problem]]:
    """What the ranks held, and what a reader must know of it; None where no rank wrote a file that can be read."""
    found: dict[int, _MemoryDocument] = {}
    problems: list[Problem] = []
    for path in files:
        try:
            document = MEMORY_SNAPSHOTS_FILE.read(path)
        except UnreadFileError as error:
            why = f"{printable(path.name)}: {printable(error.reason)}"
            problems.append(Problem.doubt(problem_texts.SNAPSHOT_UNREADABLE, why))
            continue
        if document.rank in found:
            evidence = f"{printable(path.name)}: rank {document.rank} is given twice"
            problems.append(Problem.doubt(problem_texts.SNAPSHOT_TWICE, evidence))
            continue
        found[document.rank] = document
    if not found:
        return None, problems
    documents = [found[rank] for rank in sorted(found)]
    return _memory(documents), [*problems, *_remarks(documents)]


def location(line: Line | None) -> CodeLocation | None:
    return None if line is None else CodeLocation(file=line[0], line=line[1], function=line[2])


def _peak(document: _MemoryDocument) -> int:
    return sum(document.peak.bytes.values()) if document.peak else 0


def _memory(documents: Sequence[_MemoryDocument]) -> Memory:
    failed = [document for document in documents if document.failure is not None]
    shown = max(failed or documents, key=_peak)
    timeline = MemoryTimeline(
        rank=shown.rank,
        times_ns=shown.times_ns,
        bytes={name: shown.bytes.get(name, [0] * len(shown.times_ns)) for name in CATEGORIES},  # type: ignore[call-overload]
        steps={str(step.step): step.start_ns for step in shown.steps},
    )
    return Memory(
        ranks=[_rank(document) for document in documents],
        peak=_moment(shown.rank, shown.peak),
        failure=_moment(shown.rank, shown.failure),
        timeline=timeline if shown.times_ns else None,
    )


def _rank(document: _MemoryDocument) -> MemoryRank:
    a = document.allocator
    return MemoryRank(
        rank=document.rank,
        device=document.device,
        peak_bytes=_peak(document),
        ran_out=document.failure is not None,
        complete=document.complete,
        **(a.model_dump() if a else {}),
        fragmentation_bytes=max(a.reserved_bytes - a.allocated_bytes, 0) if a else None,
    )


def _moment(rank: int, moment: _Moment | None) -> MemoryMoment | None:
    if moment is None:
        return None
    holders = [
        MemoryHolder(**h.model_dump(exclude={"blocks", "where"}), block_count=h.blocks, where=location(h.where))
        for h in moment.holders
    ]
    return MemoryMoment(
        rank=rank,
        **moment.model_dump(include={"time_ns", "range", "module", "operator", "error"}),
        step=None if moment.step is None else str(moment.step),
        bytes={name: moment.bytes.get(name, 0) for name in CATEGORIES},  # type: ignore[call-overload]
        block_count=moment.blocks,
        holders=holders,
        where=location(moment.where),
    )


def _remarks(documents: Sequence[_MemoryDocument]) -> list[Problem]:
    remarks = []
    if any(document.in_profiled_steps for document in documents):
        evidence = "too few steps came before them to compare with: give more by --warmup-steps"
        remarks.append(Problem.doubt(problem_texts.SNAPSHOT_SLOW, evidence))
    # of many ranks that fail together one is enough
    rank, failure = next(((each.rank, each.failure) for each in documents if each.failure is not None), (0, None))
    if failure is not None:
        held = sorted(((v, k) for k, v in failure.bytes.items() if v), reverse=True)
        evidence = (
            f"rank {rank}, step {failure.step}, {failure.operator} in {failure.module or failure.range or 'no range'}: "
            f"tensors held {amount(sum(v for v, _ in held))}: "
            + ", ".join(f"{name} {amount(size)}" for size, name in held[:4])
        )
        remarks.append(Problem.doubt(problem_texts.RAN_OUT, evidence))
    cut = [document.rank for document in documents if not document.complete]
    if cut:
        evidence = f"rank {cut[0]} allocated more blocks than are kept: later ones are missing"
        remarks.append(Problem.doubt(problem_texts.SNAPSHOT_CUT, evidence))
    return remarks
