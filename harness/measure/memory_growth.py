"""What grows with the steps, from the ranks' metrics, and what keeps it, from the files `kept/*.json` of a run. A file
is input from others: bounded, and validated before anything is taken from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from harness.analysis.memory_growth import FEWEST_LOOKS, KEPT_FREE, LEAST, Rate, growth
from harness.analysis.summary import MemoryGrowth, MemoryKeeper, Problem, problem_texts
from harness.common.display.printable import printable
from harness.common.run_folder.run_files import KEPT_VALUES
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system.bounded_read import BoundedReadError, parse_json
from harness.measure.memory import Amount, Line, Text, location
from harness.run import why_invalid

F64 = NDArray[np.float64]
_FIELDS = {
    "device": "device_memory_bytes",
    "host": "host_memory_bytes",
    "workers": "workers_mapped_bytes",
    "files": "files",
    "threads": "threads",
}
_BESIDE = {"free": "host_free_bytes", "share": "workers_memory_bytes"}  # known of some steps
_EVERY = {**_FIELDS, **_BESIDE}
_LIMITS = {"device": "device_limit_bytes", "host": "host_limit_bytes", "workers": "host_limit_bytes"}
_OF_HOST = ("host", "workers")
_USED = ("host", "share")  # of a host's memory
_AS_FAST = 0.5  # as the fastest rank, from which a rank grows with it
_OF_TENSORS = ("graph", "tensor")
_MOST_OF_IT = 0.5  # of what is not freed, from which the lines that allocate it are not told, too
_MOST = 4  # keepers of one growth
_LEAST_SHARE = 0.05  # of the largest keeper, from which another one is told


class _Series(NamedTuple):
    """One rank's: step numbers, the size of each batch, the values of each field, and what there is."""

    host: str
    steps: F64
    batches: F64
    values: dict[str, F64]
    limits: dict[str, int | None]

    def last(self, of: str) -> float:
        known = self.values[of][np.isfinite(self.values[of])]
        return float(known[-1]) if len(known) else 0.0


@dataclass
class MemorySeries:
    """Filled rank by rank."""

    ranks: dict[int, _Series] = field(default_factory=dict)

    def add(self, rank: int, start: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> None:
        """start, events: of a metrics file, as they were read."""
        steps = [event for event in events if event.get("event") == "step" and _number(event.get("step")) >= 0]
        sizes = "tokens" if any(step.get("tokens") for step in steps) else "samples"
        limits = {of: start.get(name) for of, name in _LIMITS.items()}
        self.ranks[rank] = _Series(
            str(start.get("host")),
            np.array([step["step"] for step in steps], float),
            np.array([_number(step.get(sizes)) for step in steps], float),
            {of: np.array([_number(step.get(name)) for step in steps], float) for of, name in _EVERY.items()},
            {of: limit if isinstance(limit, int) else None for of, limit in limits.items()},
        )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else nan


class _Growing(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)
    name: Text
    kind: Literal["graph", "tensor", "array", "text", "objects"]
    bytes_per_step: Amount
    where: Line | None


class _Allocated(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)
    where: Line
    bytes_per_step: Amount


class _KeptDocument(BaseModel):
    model_config = ConfigDict(extra="ignore", defer_build=True)
    version: Literal[1]
    rank: Annotated[int, Field(ge=0, lt=1 << 24, strict=True)]
    worker: Annotated[int, Field(ge=0, lt=1 << 24, strict=True)] | None = None
    growing: list[_Growing] = Field(max_length=100)
    tensors: list[_Allocated] = Field([], max_length=100)
    objects: list[_Allocated] = Field([], max_length=100)


def _document(text: str) -> _KeptDocument:
    try:
        return _KeptDocument.model_validate(parse_json(text))
    except ValueError as error:
        raise BoundedReadError(why_invalid(error)) from None


KEPT_VALUES_FILE = KEPT_VALUES.holding(_document)


def read_growth(series: MemorySeries, files: Sequence[Path]) -> tuple[list[MemoryGrowth], list[Problem]]:
    """What grows on which ranks, with what keeps it; and which files could not be read."""
    documents: list[_KeptDocument] = []
    problems: list[Problem] = []
    for path in files:
        try:
            documents.append(KEPT_VALUES_FILE.read(path))
        except UnreadFileError as error:
            why = f"{printable(path.name)}: {printable(error.reason)}"
            problems.append(Problem.doubt(problem_texts.SNAPSHOT_UNREADABLE, why))
    on_device = any(np.isfinite(one.values["device"]).any() for one in series.ranks.values())
    grown = [_growth(series, of, documents, on_device) for of in LEAST]
    return [one for one in grown if one is not None], problems


def _growth(series: MemorySeries, of: str, documents: Sequence[_KeptDocument], on_device: bool) -> MemoryGrowth | None:
    # What a worker has freed is not known; that it keeps something is, if a line was seen.
    is_unsure = of == "workers" and not any(each.worker is not None and each.growing for each in documents)
    least = KEPT_FREE if is_unsure else LEAST[of]
    rates = {rank: _rate(one, of, least) for rank, one in sorted(series.ranks.items())}
    found = {rank: rate for rank, rate in rates.items() if rate is not None}
    if not found:
        return None
    fastest = max(found, key=lambda rank: found[rank].per_step)
    rate = found[fastest]
    ranks = [rank for rank in found if found[rank].per_step >= _AS_FAST * rate.per_step]
    limit = series.ranks[fastest].limits.get(of)
    return MemoryGrowth(
        of=of,
        ranks=ranks,
        per_step=rate.per_step,
        low=rate.low,
        high=rate.high,
        since_step=rate.since,
        by_batch=rate.by_batch,
        is_free=rate.is_free,
        limit_bytes=limit,
        steps_left=_steps_left(series, of, fastest, found, limit),
        keepers=_keepers(documents, of, on_device),
    )


def _rate(one: _Series, of: str, least: float) -> Rate | None:
    """Of a host's memory what the program holds, if that is known of enough steps: what it has freed and the C library
    keeps is no growth of the program's, and usual up to a size."""
    held = one.values["host"] - one.values["free"]
    if of != "host" or np.isfinite(held).sum() < FEWEST_LOOKS:
        return growth(one.steps, one.values[of], of, one.batches, least=least)
    kept = growth(one.steps, held, of, one.batches, fewest=FEWEST_LOOKS)
    free = None if kept else growth(one.steps, one.values[of], of, one.batches, least=KEPT_FREE)
    return kept or (free and free._replace(is_free=not free.by_batch))


def _steps_left(
    series: MemorySeries, of: str, fastest: int, rates: Mapping[int, Rate], limit: int | None
) -> int | None:
    """The ranks of one host share its memory."""
    if limit is None:
        return None
    host = series.ranks[fastest].host
    beside = [rank for rank, one in series.ranks.items() if of in _OF_HOST and one.host == host] or [fastest]
    used = sum(series.ranks[rank].last(name) for rank in beside for name in (_USED if of in _OF_HOST else (of,)))
    per_step = sum(rates[rank].per_step for rank in beside if rank in rates)
    return max(int((limit - used) / per_step), 0)


def _keepers(documents: Sequence[_KeptDocument], of: str, on_device: bool) -> list[MemoryKeeper]:
    """Those of this memory: on a GPU its tensors, in a worker what it keeps, else the host's. Ranks that keep the same
    in the same line are one."""
    if of not in _LIMITS:
        return []
    alike: dict[tuple[Any, ...], list[tuple[int, MemoryKeeper]]] = defaultdict(list)
    for document in documents:
        if (document.worker is not None) != (of == "workers"):
            continue
        for one in _of_document(document):
            is_devices = on_device and one.kind in _OF_TENSORS
            if of == "workers" or is_devices == (of == "device"):
                line = (one.where.file, one.where.line) if one.where else None
                alike[one.name, one.kind, line, one.is_allocation].append((document.rank, one))
    found = [_merged(each, mean=of == "workers") for each in alike.values()]
    found.sort(key=lambda one: (one.is_allocation, -one.bytes_per_step))
    least = _LEAST_SHARE * found[0].bytes_per_step if found else 0
    return [one for one in found if one.bytes_per_step >= least][:_MOST]


def _of_document(document: _KeptDocument) -> list[MemoryKeeper]:
    """What was seen to grow; where that is not most of what is not freed, also the lines that allocate it."""
    every = sum(one.bytes_per_step for one in document.tensors)
    of_others = sum(one.bytes_per_step for one in document.growing if one.kind == "tensor")
    found = _by_line(
        MemoryKeeper(
            name=one.name,
            kind=one.kind,
            # What an autograd graph keeps is no object of Python's.
            bytes_per_step=max(one.bytes_per_step, every - of_others) if one.kind == "graph" else one.bytes_per_step,
            where=location(one.where),
        )
        for one in document.growing
        if one.bytes_per_step or one.kind == "graph"
    )
    allocated = [("tensor", one) for one in document.tensors] + [("objects", one) for one in document.objects]
    known = sum(one.bytes_per_step for one in found)
    if known < _MOST_OF_IT * sum(one.bytes_per_step for _, one in allocated):
        found += [
            MemoryKeeper(
                name="", kind=kind, bytes_per_step=one.bytes_per_step, where=location(one.where), is_allocation=True
            )
            for kind, one in allocated
        ]
    return found


def _by_line(keepers: Iterable[MemoryKeeper]) -> list[MemoryKeeper]:
    """Several containers that grow at one line are told as one, by the name of the largest."""
    found: dict[object, MemoryKeeper] = {}
    for one in sorted(keepers, key=lambda each: -each.bytes_per_step):
        key = (one.kind, one.where.file, one.where.line) if one.where else id(one)
        first = found.setdefault(key, one)
        if first is not one:
            first.bytes_per_step += one.bytes_per_step
    return list(found.values())


def _merged(alike: Sequence[tuple[int, MemoryKeeper]], *, mean: bool) -> MemoryKeeper:
    first = alike[0][1]
    sizes = [one.bytes_per_step for _, one in alike]
    size = round(sum(sizes) / len(sizes)) if mean else max(sizes)
    return first.model_copy(update={"bytes_per_step": size, "ranks": sorted({rank for rank, _ in alike})})
