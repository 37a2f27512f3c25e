"""Every block of memory that a training held, when, and who asked for it; added up by what it was for.

Knows blocks and ranges as plain data, and no tensor: memory_tracker.py sees the tensors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from harness.common.run_folder.memory_snapshot import CATEGORIES, MOST_HOLDERS, MOST_POINTS
from harness.observe.lines import SourceLine

# The ranges of a training by what happens in them; the innermost of these counts.
_PHASES = (
    ("DataLoad", "data"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("optimizer_step", "optimizer"),
    ("evaluation", "evaluation"),
)
_NUMBERS = re.compile(r"([ _]?(mb|stage)?\d+)+$")
_SURVIVES = {
    "data": "inputs",
    "forward": "activations",
    "backward": "gradients",
    "optimizer": "optimizer",
    "evaluation": "other",
}
_NEVER = 1 << 63


class BlockOwner(NamedTuple):
    """Where a block was asked for: the innermost range, module and operator that were open, and the user's line."""

    range: str
    module: str
    operator: str
    line: SourceLine | None = None

    def as_json(self) -> dict[str, Any]:
        line = None if self.line is None else list(self.line)
        return {"range": self.range, "module": self.module, "operator": self.operator, "where": line}


@dataclass
class MemoryPhase:
    """One forward, backward, optimizer step or loading of data. cut_off: an error ended it."""

    kind: str
    end_ns: int = _NEVER
    cut_off: bool = False


@dataclass
class MemoryBlock:
    """One block. label: what it is for, where an owner said so. phase: None for one that was there before the first."""

    size: int
    born_ns: int
    who: BlockOwner
    phase: MemoryPhase | None
    step: int | None
    died_ns: int = _NEVER
    label: str | None = None

    @property
    def category(self) -> str:
        """One of CATEGORIES: what an owner says; else by the phase that asked for it, and whether it outlived it."""
        if self.label is not None:
            return self.label
        if self.phase is None:
            return "other"
        if self.phase.kind == "backward" and self.who.module:
            return "activations"  # computed again, as --activation-checkpointing does
        if self.phase.kind == "data" or (self.phase.kind == "forward" and self.phase.cut_off):
            return _SURVIVES[self.phase.kind]  # what would have been freed in the rest of the forward is not known
        return _SURVIVES[self.phase.kind] if self.died_ns > self.phase.end_ns else "temporary"


def phase_kind(name: str) -> str | None:
    """What happens in a range; None for one that says nothing of it."""
    return next((kind for start, kind in _PHASES if name.startswith(start)), None)


def without_numbers(name: str) -> str:
    """A range's name without its step, micro-batch and stage.

    >>> without_numbers("forward mb3 stage1"), without_numbers("DataLoad batch 7"), without_numbers("optimizer_step")
    ('forward', 'DataLoad batch', 'optimizer_step')
    """
    return _NUMBERS.sub("", name)


def of_all_layers(module: str) -> str:
    """A module's name with a star for its layer, and without the wrapper of DDP or DeepSpeed.

    >>> of_all_layers("module.model.layers.3.mlp")
    'model.layers.*.mlp'
    """
    return re.sub(r"\.\d+(?=\.|$)", ".*", re.sub(r"^module\.", "", module))


def moment(
    blocks: Sequence[MemoryBlock], at_ns: int, start_ns: int, block_owner: BlockOwner, step: int | None
) -> dict[str, Any]:
    """Who held what at a moment, as the file has it."""
    held = [block for block in blocks if block.born_ns <= at_ns < block.died_ns]
    by_category = dict.fromkeys(CATEGORIES, 0)
    by_holder: dict[tuple[str, str, str, SourceLine | None], list[int]] = defaultdict(list)
    for block in held:
        category = block.category
        by_category[category] += block.size
        by_holder[category, block.who.range, of_all_layers(block.who.module), block.who.line].append(block.size)
    largest = sorted(by_holder.items(), key=lambda item: -sum(item[1]))[:MOST_HOLDERS]
    holders = [
        {
            "category": category,
            "range": range_,
            "module": module,
            "bytes": sum(sizes),
            "blocks": len(sizes),
            "where": None if line is None else list(line),
        }
        for (category, range_, module, line), sizes in largest
    ]
    return {
        "time_ns": max(at_ns - start_ns, 0), "step": step, **block_owner.as_json(),
        "bytes": by_category, "holders": holders, "blocks": len(held),
    }  # fmt: skip


def kept_by_line(blocks: Sequence[MemoryBlock], steps: range) -> dict[SourceLine | None, int]:
    """Bytes a step that are still held of these steps, by the line that asked for them: the median of the steps."""
    by_step: dict[SourceLine | None, dict[int, int]] = defaultdict(lambda: dict.fromkeys(steps, 0))
    for block in blocks:
        if block.died_ns == _NEVER and block.who.operator and block.step is not None and block.step in steps:
            by_step[block.who.line][block.step] += block.size
    return {line: int(median(sizes.values())) for line, sizes in by_step.items()}


class Timeline(NamedTuple):
    """Bytes of each category over time, thinned, and the block with which most was held."""

    times_ns: list[int]
    totals: dict[str, list[int]]
    peak: MemoryBlock | None


def timeline(blocks: Sequence[MemoryBlock], start_ns: int, end_ns: int) -> Timeline:
    """Bytes by category; of each slice of time the moment when most was held."""
    slice_ns = max((end_ns - start_ns) // MOST_POINTS, 1)
    now = dict.fromkeys(CATEGORIES, 0)
    best: dict[int, tuple[int, int, dict[str, int]]] = {}
    total = most = 0
    peak: MemoryBlock | None = None
    for at_ns, change, block in _changes(blocks):
        total += change
        now[block.category] += change
        if total > most:
            most, peak = total, block
        place = min(max(at_ns - start_ns, 0) // slice_ns, MOST_POINTS - 1)
        if place not in best or total >= best[place][0]:
            best[place] = total, max(at_ns - start_ns, 0), dict(now)
    points = [best[place] for place in sorted(best)]
    totals = {name: [held[name] for _, _, held in points] for name in CATEGORIES}
    return Timeline([at_ns for _, at_ns, _ in points], totals, peak)


def _changes(blocks: Sequence[MemoryBlock]) -> Iterator[tuple[int, int, MemoryBlock]]:
    """(when, bytes more or less, block) in the order of time; what ends at a moment ends before what begins then."""
    changes = [(block.born_ns, 1, number) for number, block in enumerate(blocks)]
    changes += [(block.died_ns, 0, number) for number, block in enumerate(blocks) if block.died_ns != _NEVER]
    for at_ns, begins, number in sorted(changes):
        block = blocks[number]
        yield at_ns, block.size if begins else -block.size, block
