"""The times of all steps of all ranks, as the training's own clock wrote them, and what they say of the job's pace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.analysis.pace import WAITING, DetectedChange, changes, own_times
from harness.analysis.pace_evidence import CORE_WAIT, PAGE_FAULTS, evidence, grown_phase
from harness.analysis.process.phases import TIMED, Phase
from harness.analysis.slowest_rank import FEWEST, slowest
from harness.analysis.summary import PaceChange, SlowestRank
from harness.common.run_folder.profile_window import MEMORY

F64 = NDArray[np.float64]
_FIELDS = ("step_ns", *(f"{part}_ns" for part in TIMED), "core_wait_ns", "page_faults", "own_ns")
_NAMES = {phase.label: phase.timed for phase in Phase if phase.timed}  # of phases in traces
OWN = "own"  # among the phases: all of a step without waiting for other ranks
_PROFILED = ("warmup", "active", MEMORY)  # phases: a profiler, or the record of memory, makes their steps longer
_MOST = 1 << 24  # a step's number


@dataclass
class RankStepTimes:
    """Filled rank by rank. Of each rank: numbers of its steps, and (fields, steps), nanoseconds, NaN where unknown."""

    ranks: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = field(default_factory=dict)

    def add(self, rank: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """The lines of a rank's metrics file. Steps in which a profiler worked are left out."""
        own = _own_times(lines)
        steps = [
            {**line, "own_ns": own.get(line["step"])}
            for line in lines
            if line.get("event") == "step" and _is_number(line.get("step"))
        ]
        kept = [line for line in steps if line.get("phase") not in _PROFILED]
        values = [[_value(line.get(name)) for line in kept] for name in _FIELDS]
        self.ranks[rank] = (np.array([line["step"] for line in kept], np.int64), np.array(values, np.float32))

    def arrays(self) -> tuple[list[int], NDArray[np.int64], dict[str, F64]]:
        """The ranks, the numbers of the steps, and each field as (ranks, steps)."""
        ranks = sorted(self.ranks)
        numbers = np.unique(np.concatenate([np.empty(0, np.int64), *(self.ranks[rank][0] for rank in ranks)]))
        names = ("step", *TIMED, CORE_WAIT, PAGE_FAULTS, OWN)
        found = {name: np.full((len(ranks), len(numbers)), np.nan) for name in names}
        for row, rank in enumerate(ranks):
            own, values = self.ranks[rank]
            columns = np.searchsorted(numbers, own)
            for name, value in zip(names, values, strict=True):
                found[name][row, columns] = value
        return ranks, numbers, found


def _own_times(lines: Iterable[Mapping[str, Any]]) -> dict[int, object]:
    """By step, the time without waiting for other ranks."""
    found: dict[int, object] = {}
    for line in lines:
        steps, own_ns = line.get("steps"), line.get("own_ns")
        if line.get("event") == "own" and isinstance(steps, list) and isinstance(own_ns, list):
            found.update((step, ns) for step, ns in zip(steps, own_ns, strict=False) if _is_number(step))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < _MOST


def _value(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else np.nan


def pace_of(
    times: RankStepTimes, in_phases: Collection[str] = (), *, on_host: bool = True
) -> tuple[list[PaceChange], SlowestRank | None]:
    """The changes of pace and the slowest rank. in_phases: where collectives run; on_host: of `own_times`."""
    ranks, numbers, fields = times.arrays()
    steps, without_waiting = fields.pop("step"), fields.pop(OWN)
    phases = {name: fields[name] for name in TIMED}
    waits = {*WAITING, *(_NAMES.get(name, name) for name in in_phases)} if len(ranks) > 1 else set()
    own = own_times(steps, phases, waits, told=without_waiting, on_host=on_host)
    found = changes(steps, own)
    return [_shown(change, ranks, numbers, fields, own) for change in found], _slowest(own, steps, ranks)


def _shown(
    change: DetectedChange,
    ranks: Sequence[int],
    numbers: NDArray[np.int64],
    times_by_field: Mapping[str, F64],
    own_time: F64,
) -> PaceChange:
    """With the numbers of the training's steps and ranks in place of those of rows and columns."""
    return PaceChange(
        step=int(numbers[change.step]),
        last_step=None if change.lasts is None else int(numbers[change.lasts]),
        before_ns=round(change.before),
        after_ns=round(change.after),
        ratio=change.ratio,
        ranks=[ranks[row] for row in change.ranks],
        named=change.named,
        phase=grown_phase(change, times_by_field),
        evidence=evidence(change, own_time, times_by_field, ranks),
    )


def _slowest(own_time: F64, steps: F64, ranks: Sequence[int]) -> SlowestRank | None:
    known = steps[:, ~np.isnan(own_time).any(axis=0)] if len(ranks) > 1 else np.empty((0, 0))
    if known.shape[-1] < FEWEST:
        return None
    step = float(np.median(known))
    found = slowest(own_time, step)
    return SlowestRank(
        kind=found.kind,
        rank=None if found.rank is None else ranks[found.rank],
        share=found.share,
        costs_ns=round(found.costs),
        step_ns=round(step),
    )
