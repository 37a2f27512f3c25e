"""The phase of training that a range or a moment belongs to: forward, backward, optimizer, data loading, sends and
receives, evaluation, or the time between two marked steps.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching, used
from harness.analysis.process.idle import COMMUNICATION, COMPUTE, NOT_WORK
from harness.analysis.process.intervals import Intervals, RangeTree, contains, union
from harness.analysis.process.ranges import by_depth
from harness.analysis.process.view import ProcessView
from harness.analysis.summary import PhaseTime
from harness.traces.columns import sorted_spans
from harness.traces.operators import counted, operators
from harness.traces.trace import I64, U8, Activity, Events, HostKind, RangeKind, Ranges

# The functions and ranges of Lightning, transformers, MMEngine and of those who follow them.
_EVALUATES = re.compile(
    r"^(## )?(eval|evaluate|evaluation|validate|validation)(_(step|loop|epoch|batch))?\b"
    r"|\b(validation|eval|test)_(step|epoch|loop)\b"
    r"|(\.|: )(evaluate|evaluation_loop|validate|run_evaluation)$"
)
INFERRED = " (by its operators)"  # how the names of such phases end
_AS_A_FORWARD_PASS = 0.5  # of the launches of a forward pass: a batch with fewer is only copied
_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function")
_END_OF_DDP = re.compile(r"^torch\.distributed\.ddp\.reducer")  # DDP waits and copies after autograd's last operator
_NONE = (np.empty(0, np.int64), np.empty(0, np.int64))


class Phase(IntEnum):
    """A phase of training. label: its name in tables and in JSON; timed: its name where a training times itself
    (harness/observe/steps.py), empty where it does not."""

    label: str
    timed: str

    FORWARD = 0, "forward", "forward"
    BACKWARD = 1, "backward", "backward"
    OPTIMIZER = 2, "optimizer", "optimizer"
    DATA = 3, "data loading", "data"
    SEND_RECV = 4, "send/recv"
    EVALUATION = 5, "evaluation", "evaluation"
    BETWEEN = 6, "between steps"
    OTHER = 7, "other"

    def __new__(cls, number: int, label: str, timed: str = "") -> Phase:
        phase = int.__new__(cls, number)
        phase._value_, phase.label, phase.timed = number, label, timed
        return phase


PHASES = tuple(phase.label for phase in Phase)
TIMED = tuple(phase.timed for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))  # of a step
_WHOLE_EVALUATION = Phase.EVALUATION.label  # as the observer marks a forward pass of one
_PATTERNS = (
    (Phase.EVALUATION, _EVALUATES),
    (Phase.FORWARD, re.compile(r"^(## )?forward|\.forward$|^pre_forward", re.IGNORECASE)),
    (Phase.BACKWARD, re.compile(r"^(## )?backward|\.backward$|^autograd", re.IGNORECASE)),
    (Phase.OPTIMIZER, re.compile(r"^(## )?(optimizer|zero_grad|scheduler)|Optimizer\.(step|zero_grad)", re.IGNORECASE)),
    (Phase.DATA, re.compile(r"data[ _]?load|DataLoader", re.IGNORECASE)),
    (Phase.SEND_RECV, re.compile(r"^(send|recv)", re.IGNORECASE)),
)


@lru_cache(maxsize=1 << 16)  # several analyses ask, of every rank's names
def phase_of_name(name: str) -> Phase:
    """The phase of a range's own name.

    >>> phase_of_name("forward mb3 stage1").label, phase_of_name("batch_7").label
    ('forward', 'other')
    """
    return next((phase for phase, pattern in _PATTERNS if pattern.search(name)), Phase.OTHER)


def _own_phases(ranges: Ranges, names: list[str]) -> NDArray[np.int8]:
    """The phase that each range's own name tells."""
    table = np.full(len(names) + 1, Phase.OTHER, np.int8)
    for i in used(ranges.name):
        table[i] = phase_of_name(names[i])
    found: NDArray[np.int8] = table[ranges.name]
    return found


def phases(ranges: Ranges, names: list[str], nesting: RangeTree) -> NDArray[np.int8]:
    """The phase of each of n range rows: its own, else the phase of the innermost range around it that has one; all
    inside of an evaluation is a part of it."""
    phase = _own_phases(ranges, names)
    for rows in reversed(by_depth(nesting.parent)):
        around = np.append(phase, np.int8(Phase.OTHER))[nesting.parent[rows]]
        inherit = (phase[rows] == Phase.OTHER) | (around == Phase.EVALUATION)
        phase[rows[inherit]] = around[inherit]
    return phase


PhaseSum = tuple[int, int, int | None, int | None]  # count, duration, compute, communication; nanoseconds
PhaseSums = dict[str, PhaseSum]


def phase_sums(events: Events, phase: NDArray[np.int8], event_class: U8, chosen: NDArray[np.bool_]) -> PhaseSums:
    """Sums per phase of the chosen events; `phase` is of every event."""
    rows = np.flatnonzero(chosen & (event_class != NOT_WORK))
    of = phase[rows]
    duration = (events.end_ns - events.start_ns)[rows]
    kind = event_class[rows]
    counts = np.isin(rows, counted(events, rows)[0])
    sums: PhaseSums = {}
    for each in Phase:
        mine = of == each
        if mine.any():
            numbers = (duration[mine], duration[mine & (kind == COMPUTE)], duration[mine & (kind == COMMUNICATION)])
            total, compute, communication = (int(n.sum()) for n in numbers)
            sums[each.label] = (int(np.count_nonzero(mine & counts)), total, compute, communication)
    return sums


def phase_table(sums: PhaseSums) -> list[PhaseTime]:
    """The sums as rows, most time first."""
    total = max(sum(row[1] for row in sums.values()), 1)
    rows = [
        PhaseTime(phase=name, kernels=n, duration_ns=ns, compute_ns=compute, communication_ns=comm, share=ns / total)
        for name, (n, ns, compute, comm) in sums.items()
    ]
    return sorted(rows, key=lambda r: (-r.duration_ns, r.phase))


def phase_of_moments(owner: I64, phase: NDArray[np.int8], moment_ns: I64, between: Intervals) -> NDArray[np.int8]:
    """The phases of moments: BETWEEN for those between two marked steps, unless data is loaded there; else by the range
    rows that own them, OTHER without an owner (-1)."""
    found: NDArray[np.int8] = np.append(phase, np.int8(Phase.OTHER))[owner]
    found[contains(between, moment_ns) & (found != Phase.DATA) & (found != Phase.EVALUATION)] = Phase.BETWEEN
    return found


_BORDERS = (Phase.OPTIMIZER, Phase.DATA)  # a forward pass begins after these
_INFERRED = tuple(f"{phase.label}{INFERRED}" for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.EVALUATION))


class _Acts(NamedTuple):
    """What a process did one after the other, n times: outermost operators, or calls that launch. thread: of the
    program. autograd: of a backward pass. tail: of the end of one."""

    thread: int
    start_ns: I64
    end_ns: I64
    autograd: NDArray[np.bool_]
    tail: NDArray[np.bool_]


def with_whole_evaluations(view: ProcessView) -> ProcessView:
    """The process with a range around each evaluation: from the data of its first forward pass to the last one's end,
    with what the program does between them, as long as it loads nothing that is trained on; and for the functions that
    evaluate, where Python's were recorded."""
    ranges, names, host = view.ranges, view.names, view.host
    of = _own_phases(ranges, names)
    python = (host.kind == HostKind.PYTHON) & matching(host.name, names, _EVALUATES.search)
    added = ranges
    for thread in np.unique(np.append(ranges.thread[of == Phase.EVALUATION], host.thread[python])).tolist():
        rows = np.flatnonzero((ranges.thread == thread) & (of != Phase.OTHER))
        rows = rows[ranges.end_ns[rows] > np.append(-1, np.maximum.accumulate(ranges.end_ns[rows])[:-1])]
        start, end = _evaluations(of[rows], ranges.start_ns[rows], ranges.end_ns[rows])
        rows = np.flatnonzero(python & (host.thread == thread))
        whole = union(np.append(start, host.start_ns[rows]), np.append(end, host.end_ns[rows]))
        added = _rows(added, thread, len(names), (whole.start, whole.end))
    if added is ranges:
        return view
    return replace(view, trace=replace(view.trace, names=[*names, _WHOLE_EVALUATION]), ranges=added)


def _evaluations(phase: NDArray[np.int8], start: I64, end: I64) -> I64:
    """Starts and ends (2, k) of the evaluations among n outermost ranges of a thread: runs of evaluation's ranges, each
    perhaps with data loading before it."""
    at = np.where(phase == Phase.DATA, len(phase), np.arange(len(phase)))
    further = np.minimum.accumulate(at[::-1])[::-1]  # the next range that loads nothing
    mine = np.append(phase, Phase.OTHER)[further] == Phase.EVALUATION
    begins = np.flatnonzero(mine & ~np.append(False, mine[:-1]))
    ends = np.flatnonzero(mine & ~np.append(mine[1:], False))
    return np.stack([start[begins], end[ends]])


def with_inferred_phases(view: ProcessView) -> ProcessView:
    """The process with ranges for its forward and backward passes and evaluations, where autograd's operators show them
    and no range does."""
    ranges, names = view.ranges, view.names
    of = _own_phases(ranges, names)
    if (of == Phase.BACKWARD).any():
        return view
    acts = _on_cpu(view) if view.on_cpu else _on_gpu(view)
    if acts is None:
        return view
    begins, ends = _passes(acts)
    own = ranges.thread == acts.thread
    others = own & np.isin(of, _BORDERS)
    step = ranges.kind == RangeKind.STEP
    borders = np.concatenate([ends, ranges.end_ns[others], ranges.start_ns[step]])
    forward = _before(begins, borders, np.concatenate([acts.start_ns, ranges.start_ns[own & ~step]]))
    evaluated = (
        _untrained(ranges, np.where(own, of, Phase.OTHER), acts, begins)
        if not (of == Phase.EVALUATION).any()
        else _NONE
    )
    added = _rows(ranges, acts.thread, len(names), (forward, begins), (begins, ends), evaluated)
    return replace(view, trace=replace(view.trace, names=[*names, *_INFERRED]), ranges=added)


def _untrained(ranges: Ranges, of: NDArray[np.int8], acts: _Acts, begins: I64) -> tuple[I64, I64]:
    """Start and end of each row of batches that are loaded and put through the model, and then the next is loaded: no
    backward pass is for them. Not those of every step, which may be trained on together with another batch."""
    loads = np.flatnonzero(of == Phase.DATA)
    loads = loads[ranges.end_ns[loads] > np.append(-1, np.maximum.accumulate(ranges.end_ns[loads])[:-1])]
    step = ranges.kind == RangeKind.STEP
    if len(loads) < 2 or not step.any():
        return _NONE
    loaded, until = ranges.end_ns[loads], np.append(ranges.start_ns[loads[1:]], ranges.end_ns[step].max())
    optimizer = union(ranges.start_ns[of == Phase.OPTIMIZER], ranges.end_ns[of == Phase.OPTIMIZER])
    rows = np.flatnonzero(~acts.autograd & ~acts.tail & ~contains(optimizer, acts.start_ns))
    before, launched = acts.start_ns[rows].searchsorted(loaded), acts.start_ns[rows].searchsorted(until)
    first = begins.searchsorted(loaded)
    trained = begins.searchsorted(until) > first
    if not trained.any():
        return _NONE
    passes = acts.start_ns[rows].searchsorted(begins[first[trained]]) - before[trained]
    mine = ~trained & (launched - before >= max(_AS_A_FORWARD_PASS * float(np.median(passes)), 1))
    edges = np.sort(ranges.start_ns[step])
    in_steps = [np.unique(edges.searchsorted(at, side="right")) for at in (loaded[mine], begins)]
    if np.isin(in_steps[1], in_steps[0]).all():
        return _NONE
    end = acts.end_ns[rows[np.maximum(launched - 1, 0)]] if len(rows) else until
    start, end = _evaluations(
        np.where(mine, Phase.EVALUATION, Phase.OTHER).astype(np.int8), ranges.start_ns[loads], end
    )
    return start, end


def _on_cpu(view: ProcessView) -> _Acts | None:
    """Without a GPU autograd runs on the program's own thread, and all operators are recorded."""
    events, names = view.events, view.names
    autograd = matching(events.name, names, _AUTOGRAD.search) & (events.activity == Activity.CPU_OP)
    if not autograd.any():
        return None
    threads, counts = np.unique(events.stream[autograd], return_counts=True)
    thread = int(threads[np.argmax(counts)])
    rows = np.flatnonzero((events.stream == thread) & (events.activity == Activity.CPU_OP))
    whole = operators(events, rows)
    outermost = whole.start_ns >= np.append(0, np.maximum.accumulate(whole.end_ns)[:-1])
    first = whole.first[outermost]
    tail = matching(events.name[first], names, _END_OF_DDP.search)
    return _Acts(thread, whole.start_ns[outermost], whole.end_ns[outermost], autograd[first], tail)


def _on_gpu(view: ProcessView) -> _Acts | None:
    """With a GPU autograd has a thread of its own, from which it launches while the program's thread waits."""
    host, calls, ranges = view.host, view.calls, view.ranges
    threads = np.unique(host.thread[matching(host.name, view.names, _AUTOGRAD.search)])
    marks = ranges.thread[ranges.kind == RangeKind.STEP]
    if not len(threads) or not len(marks) or np.isin(marks[0], threads):
        return None
    rows = np.flatnonzero(np.isin(calls.thread, np.append(threads, marks[0])))
    autograd = np.isin(calls.thread[rows], threads)
    return _Acts(int(marks[0]), calls.start_ns[rows], calls.end_ns[rows], autograd, np.zeros(len(rows), np.bool_))


def _passes(acts: _Acts) -> tuple[I64, I64]:
    """Begin and end of each backward pass: autograd's operators one after the other, with the end of DDP's work."""
    at = np.flatnonzero(acts.autograd | acts.tail)
    new = np.append(True, (np.diff(at) > 1) & ~acts.tail[at[1:]])[: len(at)]
    last = np.append(np.flatnonzero(new)[1:] - 1, len(at) - 1)
    return acts.start_ns[at[new]], acts.end_ns[at[last]] if len(at) else acts.end_ns[at]


def _before(begins: I64, borders: I64, starts: I64) -> I64:
    """The start of each forward pass: the first start after the last border before a backward pass; where there is no
    such border or start, the backward pass's own start."""
    borders, starts = np.sort(np.append(borders, -1)), np.sort(np.append(starts, np.iinfo(np.int64).max))
    border = borders[np.searchsorted(borders, begins, side="right") - 1]
    first = starts[np.searchsorted(starts, border)]
    return np.where(border >= 0, np.minimum(first, begins), begins)


def _rows(ranges: Ranges, thread: int, name: int, *passes: tuple[I64, I64]) -> Ranges:
    """The ranges with a row for each pass that takes time; the passes' names begin at `name`."""
    start, end = (np.concatenate(column) for column in zip(*passes, strict=True))
    number = np.repeat(np.arange(name, name + len(passes)), [len(begins) for begins, _ in passes])
    taken = end > start
    n = int(taken.sum())
    more = Ranges(
        start[taken],
        end[taken],
        number[taken].astype(np.int32),
        np.full(n, thread),
        np.full(n, RangeKind.ANNOTATION, np.uint8),
        np.full(n, ranges.process[0] if len(ranges) else -1),
        np.full(n, -1, np.int32),
        np.zeros(n, np.uint8),
    )
    columns = (np.concatenate([getattr(ranges, f.name), getattr(more, f.name)]) for f in fields(Ranges))
    return sorted_spans(Ranges(*columns))
