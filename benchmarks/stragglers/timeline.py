"""A timeline of operations: its columns, and its steps where it does not number them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.common.printable import printable, printable_name
from harness.traces.errors import TraceError
from harness.traces.trace import F64, I64, U8
from stragglers.table import Table, lacks
from stragglers.vocabulary import BETWEEN_STAGES, FUSED, ONE_NAME, ROLES, Role, plain_operation

_BEFORE_FORWARD = (Role.FORWARD, Role.FORWARD_RECV, Role.GATHER)
MOST_WORKERS = 100_000
_MOST_NUMBER = 1 << 31
_MOST_NAMED = 5


def steps_of(rows: dict[str, I64], role: NDArray[np.int64]) -> tuple[I64, str]:
    """Of each row the number of its step on its worker, from 0 on; and where a step ends, in words."""
    step = np.zeros(len(role), np.int64)
    worker = rows["dp_rank"] * (1 << 31) + rows["stage"]
    by_optimizer = bool((role == Role.OPTIMIZER).any())
    order = np.lexsort((rows["start"], worker))
    bounds = np.flatnonzero(np.diff(worker[order], prepend=-1, append=-1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = order[first:last]
        cut = _by_optimizer if by_optimizer else _by_passes
        step[mine] = cut(rows, role, mine)
    return step, "with its optimizer" if by_optimizer else "where forward begins again after backward"


def _by_optimizer(rows: dict[str, I64], role: NDArray[np.int64], mine: NDArray[np.intp]) -> I64:
    """How many optimizers had ended when each operation was in its middle."""
    start, length = rows["start"][mine], rows["length"][mine]
    optimizer = role[mine] == Role.OPTIMIZER
    ends = np.sort(start[optimizer] + length[optimizer])
    return np.searchsorted(ends, start + length // 2, side="right").astype(np.int64)


def _by_passes(rows: dict[str, I64], role: NDArray[np.int64], mine: NDArray[np.intp]) -> I64:
    """A micro-batch that begins a second time begins a step; without micro-batches all is one step."""
    forward = mine[(role[mine] == Role.FORWARD) & (rows["micro_batch"][mine] >= 0)]
    if not len(forward):
        return np.zeros(len(mine), np.int64)
    batch, chunk = rows["micro_batch"][forward], rows["chunk"][forward]
    again = (batch == batch[0]) & (chunk == chunk[0])
    begins = rows["start"][forward][again]
    passes = mine[(role[mine] == Role.BACKWARD) | (role[mine] == Role.FORWARD)]
    before = np.searchsorted(rows["start"][passes], begins, side="left")
    ends = (rows["start"] + rows["length"])[passes][before[1:] - 1]
    start = rows["start"][mine]
    of_next = np.isin(role[mine], _BEFORE_FORWARD)
    late = np.searchsorted(begins[1:], start, side="right")
    early = np.searchsorted(ends, start, side="right")
    return np.where(of_next, early, late).astype(np.int64)


@dataclass(frozen=True)
class Operations:
    """n operations, sorted by step, data-parallel rank, stage, kind and start. All columns have length n.

    kind: index into `names`; dp, stage, rank: the worker's numbers, where `rank` is -1 if the file has none;
    step: index into `steps`, which are as the file numbers them; chunk: of the worker's model chunks, 0 where not
    known; micro_batch: -1 where not known. start_ns, end_ns: since the step's first operation.
    """

    path: str
    names: list[str]
    roles: list[Role]
    steps: list[int]
    kind: I64
    dp: I64
    stage: I64
    rank: I64
    step: I64
    chunk: I64
    micro_batch: I64
    start_ns: I64
    end_ns: I64
    notes: list[str]
    left_out: int  # steps with times that cannot be read

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def role(self) -> U8:
        """Each operation's role."""
        return np.array(self.roles, np.uint8)[self.kind]


def operations_of(table: Table) -> Operations:
    """The operations of a table, without those of unknown names and without steps that cannot be read.

    Raises:
        ColumnsError: a pipeline's operations without a column for the stage.
        TraceError: there is no operation that is known, or no worker.
    """
    notes = list(table.notes)
    table, names, roles = _known(table, notes)
    rows = _rows(table, roles, notes)
    step_values = np.unique(rows["step"])
    keep = ~np.isin(rows["step"], np.unique(rows["step"][rows["bad"] > 0]))
    if not keep.any():
        raise TraceError(table.path, "has a time that is no time, or a worker that is no number, in every step")
    left_out = len(step_values) - len(np.unique(rows["step"][keep]))
    rows = {name: column[keep] for name, column in rows.items()}
    rows = _first_of_tensor_parallel(rows, notes)
    steps, rows["step"] = np.unique(rows["step"], return_inverse=True)
    order = np.lexsort((rows["sequence"], rows["start"], rows["kind"], rows["stage"], rows["dp_rank"], rows["step"]))
    rows = {name: column[order] for name, column in rows.items()}
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, rows["step"], rows["start"])
    start = rows["start"] - first[rows["step"]]
    return Operations(
        path=str(table.path),
        names=names,
        roles=roles,
        steps=steps.tolist(),
        kind=rows["kind"],
        dp=rows["dp_rank"],
        stage=rows["stage"],
        rank=rows["rank"],
        step=rows["step"],
        chunk=_chunks(rows, np.array(roles)),
        micro_batch=rows["micro_batch"],
        start_ns=start,
        end_ns=start + rows["length"],
        notes=notes,
        left_out=left_out,
    )


def _known(table: Table, notes: list[str]) -> tuple[Table, list[str], list[Role]]:
    """The table with the operations that are known, under one name each; one timer of two operations is two rows."""
    parts: list[tuple[NDArray[np.intp], str]] = []
    unknown: list[str] = []
    for code, written in enumerate(table.names):
        plain = plain_operation(written)
        rows = np.flatnonzero(table.operation == code)
        meant = FUSED.get(plain) or ((plain,) if plain in ROLES else ())
        unknown += [] if meant else [written]
        parts += [(rows, ONE_NAME.get(name, name)) for name in meant]
    if not parts:
        shown = ", ".join(printable(name)[:40] for name in unknown[:_MOST_NAMED])
        raise TraceError(
            table.path,
            f"has no operation that is known: it has {shown}; known are {', '.join(dict.fromkeys(ONE_NAME.values()))}",
        )
    if unknown:
        count = len(table) - sum(len(rows) for rows in {id(rows): rows for rows, _ in parts}.values())
        more = f" and {len(unknown) - _MOST_NAMED} more names" if len(unknown) > _MOST_NAMED else ""
        shown = ", ".join(printable_name(name) for name in unknown[:_MOST_NAMED])
        notes.append(f"{count} operations of other names were left out: {shown}{more}")
    names = list(dict.fromkeys(name for _, name in parts))
    at = np.concatenate([rows for rows, _ in parts])
    kinds = np.concatenate([np.full(len(rows), names.index(name), np.int64) for rows, name in parts])
    numbers = {name: column[at] for name, column in table.numbers.items()}
    known = replace(table, operation=kinds, numbers=numbers, unreadable=table.unreadable[at])
    return known, names, [ROLES[name] for name in names]


Rows = dict[str, I64]


def _rows(table: Table, roles: list[Role], notes: list[str]) -> Rows:
    """The columns as whole numbers. bad: 1 for a row that makes its step unusable."""
    numbers, n = table.numbers, len(table)
    rows: Rows = {"kind": table.operation}
    bad = table.unreadable.copy()
    with np.errstate(invalid="ignore"):
        origin = float(np.min(numbers["start"][~bad])) if not bad.all() else 0.0
        for name, column, least in (("start", numbers["start"] - origin, 0.0), ("length", numbers["duration"], 0.0)):
            valid = np.isfinite(column) & (column >= least) & (column < 4e18)
            bad |= ~valid
            rows[name] = np.rint(np.where(valid, column, 0.0)).astype(np.int64)
    for name in ("rank", "dp_rank", "stage", "tp_rank", "step", "micro_batch", "chunk", "sequence"):
        given = numbers.get(name)
        rows[name], wrong = _whole(given, n)
        bad |= wrong if name in ("rank", "dp_rank", "stage", "step") else False
    rows["bad"] = bad.astype(np.int64)
    _place_workers(table, roles, rows)
    if "step" not in numbers:
        rows["step"], how = steps_of(rows, np.array(roles)[rows["kind"]])
        notes.append(f"the file numbers no steps, so a step ends {how}")
    return rows


def _whole(column: F64 | None, n: int) -> tuple[I64, NDArray[np.bool_]]:
    """A column of whole numbers from 0 on, -1 for what is none, and which rows are not whole numbers."""
    if column is None:
        return np.full(n, -1), np.zeros(n, bool)
    with np.errstate(invalid="ignore"):
        valid = (column == np.floor(column)) & (column >= 0) & (column < _MOST_NUMBER)
    return np.where(valid, column, -1).astype(np.int64), ~valid


def _place_workers(table: Table, roles: list[Role], rows: Rows) -> None:
    """The stage and the data-parallel rank of each row, also where the file has only one of them and the rank."""
    there = table.numbers
    if "stage" not in there:
        if any(role in BETWEEN_STAGES for role in roles) and "dp_rank" not in there:
            raise lacks(table.path, ["stage"], [*there, "operation"])
        rows["stage"] = _order_within(rows["dp_rank"], rows["rank"]) if "dp_rank" in there else 0 * rows["kind"]
    if "dp_rank" not in there:
        rows["dp_rank"] = _order_within(rows["stage"], rows["rank"])
    workers = len(np.unique(rows["dp_rank"] * _MOST_NUMBER + rows["stage"]))
    if workers > MOST_WORKERS:
        raise TraceError(table.path, f"has {workers:,} workers, more than {MOST_WORKERS:,}")


def _order_within(group: I64, number: I64) -> I64:
    """Of each row the place of its number among all different ones of its group."""
    pairs, inverse = np.unique(np.stack([group, number]), axis=1, return_inverse=True)
    first = np.searchsorted(pairs[0], pairs[0], side="left")
    found: I64 = (np.arange(pairs.shape[1]) - first)[inverse.ravel()]
    return found


def _first_of_tensor_parallel(rows: Rows, notes: list[str]) -> Rows:
    """Of workers that share a stage and a data-parallel rank the first one: they go through each operation together."""
    key = np.where(rows["tp_rank"] >= 0, rows["tp_rank"], rows["rank"])
    place = _order_within(rows["dp_rank"] * _MOST_NUMBER + rows["stage"], key)
    if not place.any():
        return rows
    notes.append(
        f"up to {int(place.max()) + 1} ranks share a stage and a data-parallel rank (tensor parallelism): the first of "
        "them stands for all"
    )
    return {name: column[place == 0] for name, column in rows.items()}


def _chunks(rows: Rows, roles: NDArray[np.int64]) -> I64:
    """The model chunk of each operation: as given; else a micro-batch's n-th forward on a worker is that of chunk n."""
    if (rows["chunk"] >= 0).any() or not (rows["micro_batch"] >= 0).any():
        return np.maximum(rows["chunk"], 0)
    chunk = np.zeros(len(rows["kind"]), np.int64)
    role = roles[rows["kind"]]
    for which in (Role.FORWARD, Role.BACKWARD):
        mine = np.flatnonzero((role == which) & (rows["micro_batch"] >= 0))
        key = np.stack([rows[name][mine] for name in ("step", "dp_rank", "stage", "micro_batch")])
        _, group, count = np.unique(key, axis=1, return_inverse=True, return_counts=True)
        place = _order_within(group.ravel(), np.arange(len(mine)))
        chunk[mine] = place if which == Role.FORWARD else count[group.ravel()] - 1 - place
    return chunk
