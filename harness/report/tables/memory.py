"""The tables of who held the memory, at the peak or when it ran out: by category, by place and by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.analysis.metric_values import MEMORY_OF_PLAN
from harness.analysis.summary import Memory, MemoryHolder, MemoryMoment, MemoryRank, PredictedNumber, Summary
from harness.report.tables import training
from harness.report.tables.table import Column, File, TableOf, plain

_MANY_RANKS = 16
BY_PLAN = TableOf[PredictedNumber](
    caption="Beside the plan, which counts temporaries as activations, and in the optimizer's step as buffers",
    rows=lambda s: [p for p in s.predictions if s.memory is not None and p.name in MEMORY_OF_PLAN],
    columns=training.PREDICTIONS.columns,
    section="memory",
    in_terminal=lambda s: False,  # the plan's own table has these lines
)


class _Row(NamedTuple):
    name: str
    bytes: int
    share: float


def shown_moment(memory: Memory) -> MemoryMoment | None:
    """When memory ran out, else the peak."""
    return memory.failure or memory.peak


def moment_words(moment: MemoryMoment) -> str:
    """Where the training was: `rank 0, step 3, backward, aten.mm.default`."""
    step = None if moment.step is None else f"step {moment.step}"
    parts = (f"rank {moment.rank}", step, moment.range, moment.module, moment.operator)
    return ", ".join(filter(None, parts))


def _caption(s: Summary) -> str:
    moment = shown_moment(s.memory) if s.memory else None
    if moment is None:
        return "Memory of tensors"
    when = "when the memory was full" if s.memory and s.memory.failure else "at its peak"
    return f"Memory of tensors {when}: {moment_words(moment)}"


def _categories(s: Summary) -> list[_Row]:
    moment = shown_moment(s.memory) if s.memory else None
    if moment is None:
        return []
    total = moment.total_bytes
    rows = [_Row(name, size, size / total) for name, size in moment.bytes.items() if size]
    return [*rows, _Row("total", total, 1)]


CATEGORIES = TableOf[_Row](
    caption=_caption,
    rows=_categories,
    columns=(Column("what for", "name"), Column("bytes", "bytes"), Column("share", "share")),
    section="memory",
)


def _holders(s: Summary) -> Sequence[MemoryHolder]:
    moment = shown_moment(s.memory) if s.memory else None
    return moment.holders if moment else []


HOLDERS = TableOf[MemoryHolder](
    caption="What allocated it: the innermost open range and module",
    rows=_holders,
    columns=(
        Column("category", "category"),
        Column("range", "range"),
        Column("module", "module"),
        Column("bytes", "bytes"),
        Column("blocks", "block_count"),
    ),
    left=3,
    section="memory",
    most=15,
    rest="places",
    file=File("memory_holders", lambda s: map(plain, _holders(s))),
)


def _allocator_caption(s: Summary) -> str:
    if s.memory is not None and all(r.fragmentation_bytes is None for r in s.memory.ranks):
        return "Fragmentation is not known: the CPU's allocator does not reserve memory."
    return "PyTorch's allocator when tensors had most: what it reserved and did not use is fragmentation"


ALLOCATOR = TableOf[MemoryRank](
    caption=_allocator_caption,
    rows=lambda s: s.memory.ranks if s.memory else [],
    columns=(
        Column("rank", "rank"),
        Column("peak of tensors", "peak_bytes"),
        Column("peak with operators", "peak_allocated_bytes"),
        Column("allocated", "allocated_bytes"),
        Column("reserved", "reserved_bytes"),
        Column("not in use", "fragmentation_bytes"),
        Column("idle parts", "inactive_split_bytes"),
        Column("ran out", lambda r: "yes" if r.ran_out else "no"),
    ),
    section="memory",
    most=_MANY_RANKS,
    rest="ranks",
    file=File("memory_ranks", lambda s: map(plain, s.memory.ranks if s.memory else [])),
)

TABLES: tuple[TableOf[Any], ...] = (CATEGORIES, BY_PLAN, HOLDERS, ALLOCATOR)
