"""Pipelines of many ranks, simulated operation by operation, as timelines of operations whose slowdown is known.

The simulation walks the schedule by micro-batch and model chunk. It shares nothing with the product, which sees only
names and times.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple


class Op(NamedTuple):
    """One operation of a worker in a step; number: of its kind there."""

    kind: str
    dp: int
    stage: int
    step: int
    number: int


Scale = Callable[[Op, int], float]  # of an operation and its micro-batch, a factor on its length
MEANS = ("forward-compute", "backward-compute", "gc", "optimizer")
LENGTHS_MS = {
    "forward-compute": 20.0,
    "backward-compute": 40.0,
    "forward-send": 0.5,
    "forward-recv": 0.5,
    "backward-send": 0.5,
    "backward-recv": 0.5,
    "params-all-gather": 12.0,
    "gc": 0.1,
    "layernorm-grads-all-reduce": 0.2,
    "embedding-grads-all-reduce": 3.0,
    "grads-reduce-scatter": 15.0,
    "separate-grads-all-reduce": 2.0,
    "optimizer-clip-main-grad": 1.0,
    "optimizer": 8.0,
}


@dataclass(frozen=True)
class Shape:
    """A job: data-parallel ranks, stages, model chunks per stage, micro-batches, steps."""

    dp: int
    pp: int
    chunks: int = 1
    batches: int = 8
    steps: int = 2
    overlap: bool = False  # gradients are reduced during backward
    no_ops: bool = False  # sends and receives at the model's ends are recorded too


@dataclass
class Job:
    """A simulated job: each operation's length, what it waits for, whom it meets."""

    shape: Shape
    lengths: dict[Op, float] = field(default_factory=dict)
    after: dict[Op, list[Op]] = field(default_factory=dict)
    meets: dict[Op, tuple[Any, ...]] = field(default_factory=dict)
    batch: dict[Op, tuple[int, int]] = field(default_factory=dict)  # micro-batch and chunk

    def times(self, lengths: dict[Op, float] | None = None) -> dict[Op, tuple[float, float]]:
        """Start and end of each operation, of each step from 0 on."""
        lengths = lengths or self.lengths
        members: dict[tuple[Any, ...], list[Op]] = {}
        for op, key in self.meets.items():
            members.setdefault(key, []).append(op)
        waits = {op: len(before) for op, before in self.after.items()}
        following: dict[Op, list[Op]] = {op: [] for op in self.after}
        for op, before in self.after.items():
            for each in before:
                following[each].append(op)
        begun: dict[Op, float] = {}
        found: dict[Op, tuple[float, float]] = {}
        ready = [op for op, count in waits.items() if not count]
        while ready:
            op = ready.pop()
            begun[op] = max((found[each][1] for each in self.after[op]), default=0.0)
            group = members[self.meets[op]] if op in self.meets else [op]
            if not all(each in begun for each in group):
                continue
            together = max(begun[each] for each in group)
            for each in group:
                found[each] = begun[each], together + lengths[each]
                for later in following[each]:
                    waits[later] -= 1
                    if not waits[later]:
                        ready.append(later)
        assert len(found) == len(self.after), "the schedule waits for itself"
        return found

    def mean_step(self, lengths: dict[Op, float] | None = None) -> float:
        """The mean step in milliseconds."""
        ends = [0.0] * self.shape.steps
        for op, (_, end) in self.times(lengths).items():
            ends[op.step] = max(ends[op.step], end)
        return fmean(ends)

    def ideal(self) -> dict[Op, float]:
        """Ideal lengths: the mean of what computes, the median of what communicates."""
        by_kind: dict[str, list[float]] = {}
        for op, length in self.lengths.items():
            by_kind.setdefault(op.kind, []).append(length)
        best = {kind: fmean(x) if kind in MEANS else median(x) for kind, x in by_kind.items()}
        return {op: best[op.kind] for op in self.lengths}

    def slowdown(self, chosen: Callable[[Op], bool] = lambda op: True) -> float:
        """S; of some operations with all others ideal."""
        ideal = self.ideal()
        mixed = {op: length if chosen(op) else ideal[op] for op, length in self.lengths.items()}
        return self.mean_step(mixed) / self.mean_step(ideal)

    def rows(self) -> list[dict[str, Any]]:
        """The timeline with the columns and the seconds of StragglerAnalysis."""
        rows = []
        for op, (start, end) in self.times().items():
            batch, chunk = self.batch.get(op, (-1, -1))
            rows.append(
                {
                    "dp_rank": op.dp,
                    "stage": op.stage,
                    "rank": op.stage * self.shape.dp + op.dp,
                    "step": 10 + op.step,
                    "optype": op.kind,
                    "start_ts": 1000.0 * op.step + start / 1e3,
                    "duration": (end - start) / 1e3,
                    "seq_id": op.number,
                    "mc": chunk,
                    "mb_id": batch,
                }
            )
        return rows


def schedule(shape: Shape, stage: int) -> list[tuple[bool, int, int]]:
    """The passes of a stage in order: forward, micro-batch, chunk. Megatron's 1F1B, interleaved with several chunks."""
    total, pp, v = shape.batches * shape.chunks, shape.pp, shape.chunks

    def at(k: int, forward: bool) -> tuple[bool, int, int]:
        inside = k % (pp * v)
        chunk = inside // pp if v > 1 else 0
        batch = (k // (pp * v)) * pp + k % pp if v > 1 else k
        return forward, batch, chunk if forward else v - 1 - chunk

    warm = (pp - stage - 1) * 2 + (v - 1) * pp if v > 1 else pp - stage - 1
    warm = min(warm, total)
    passes = [at(k, True) for k in range(warm)]
    for k in range(warm, total):
        passes += [at(k, True), at(k - warm, False)]
    return [*passes, *(at(k, False) for k in range(total - warm, total))]


def job(shape: Shape, scale: Scale = lambda op, batch: 1.0, noise: float = 0.01, seed: int = 1) -> Job:
    """A job whose operations last as `LENGTHS_MS` says, times `scale` and noise."""
    made, chance = Job(shape), random.Random(seed)

    def add(
        kind: str, place: tuple[int, int, int], number: int, after: list[Op], *, batch: int = -1, chunk: int = -1
    ) -> Op:
        op = Op(kind, *place, number)
        made.lengths[op] = LENGTHS_MS[kind] * chance.lognormvariate(0, noise) * scale(op, batch)
        made.after[op] = list(after)
        if batch >= 0 or chunk >= 0:
            made.batch[op] = batch, chunk
        return op

    for step in range(shape.steps):
        for dp in range(shape.dp):
            for stage in range(shape.pp):
                _worker(made, shape, (dp, stage, step), add)
    return made


def _worker(made: Job, shape: Shape, place: tuple[int, int, int], add: Callable[..., Op]) -> None:
    dp, stage, step = place
    passes = schedule(shape, stage)
    order = [Op("forward-compute" if f else "backward-compute", *place, sum(p[0] == f for p in passes[:i]))
             for i, (f, _, _) in enumerate(passes)]  # fmt: skip
    last = {True: shape.chunks * shape.pp - 1, False: 0}
    previous: dict[str, Op] = {}
    gathers: dict[int, Op] = {}
    for chunk in range(shape.chunks):
        before = [gathers[chunk - 1]] if chunk else []
        gathers[chunk] = add("params-all-gather", place, chunk, before, chunk=chunk)
        made.meets[gathers[chunk]] = ("gather", step, stage, chunk)
    counts: dict[str, int] = {}
    first_backward = next(i for i, one in enumerate(passes) if not one[0])
    for i, (forward, batch, chunk) in enumerate(passes):
        name = "forward" if forward else "backward"
        place_in_model = chunk * shape.pp + stage
        needs = [order[i - 1]] if i else []
        if forward and not any(p[0] and p[2] == chunk for p in passes[:i]):
            needs.append(gathers[chunk])
        early = [order[first_backward - 2]] if not forward and first_backward >= 2 else []
        receives = place_in_model != (0 if forward else shape.chunks * shape.pp - 1)
        if receives or shape.no_ops:
            kind = f"{name}-recv"
            after = [*([previous[kind]] if kind in previous else []), *([previous[name]] if name in previous else [])]
            after += early if kind not in previous else []
            op = add(kind, place, counts.get(kind, 0), after)
            counts[kind] = counts.get(kind, 0) + 1
            previous[kind] = op
            needs.append(op)
            if receives:
                made.meets[op] = (name, dp, step, batch, place_in_model - (1 if forward else -1))
        computed = add(f"{name}-compute", place, order[i].number, needs, batch=batch, chunk=chunk)
        previous[name] = computed
        sends = place_in_model != last[forward]
        if sends or shape.no_ops:
            kind = f"{name}-send"
            after = [computed, *([previous[kind]] if kind in previous else [])]
            after += early if kind not in previous else []
            op = add(kind, place, counts.get(kind, 0), after)
            counts[kind] = counts.get(kind, 0) + 1
            previous[kind] = op
            if sends:
                made.meets[op] = (name, dp, step, batch, place_in_model)
    _end(made, place, gathers[shape.chunks - 1], order, add)


def _end(made: Job, place: tuple[int, int, int], stream: Op, order: list[Op], add: Callable[..., Op]) -> None:
    """What follows the passes: gradients, their norm, the optimizer. stream: the last gathering of parameters."""
    _, stage, step = place
    shape, passes = made.shape, schedule(made.shape, stage)
    before = [add("gc", place, 0, [order[-1]])]
    if shape.overlap:
        for number, chunk in enumerate(reversed(range(shape.chunks))):
            done = max(i for i, (forward, _, c) in enumerate(passes) if not forward and c == chunk)
            stream = add("grads-reduce-scatter", place, number, [stream, order[done]], chunk=chunk)
            made.meets[stream] = ("reduce", step, stage, number)
        before.append(stream)
    kinds = ["layernorm-grads-all-reduce"]
    kinds += ["embedding-grads-all-reduce"] if stage in (0, shape.pp - 1) else []
    for kind in kinds:
        before = [add(kind, place, 0, before)]
        if kind.startswith("embedding"):
            made.meets[before[0]] = ("embedding", place[0], step)
    if shape.overlap:
        before = [add("separate-grads-all-reduce", place, 0, before)]
        made.meets[before[0]] = ("separate", step, stage)
    else:
        for number in range(shape.chunks):
            before = [add("grads-reduce-scatter", place, number, [*before, stream], chunk=number)]
            stream = before[0]
            made.meets[before[0]] = ("reduce", step, stage, number)
    before = [add("optimizer-clip-main-grad", place, 0, before)]
    made.meets[before[0]] = ("clip", step)
    add("optimizer", place, 0, before)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def slow_stage(stage: int, factor: float) -> Scale:
    """All passes of a stage take longer."""
    return lambda op, batch: factor if op.stage == stage and op.kind.endswith("compute") else 1.0


def slow_worker(dp: int, stage: int, factor: float) -> Scale:
    """All passes of one worker take longer."""
    return lambda op, batch: factor if (op.dp, op.stage) == (dp, stage) and op.kind.endswith("compute") else 1.0


def long_sequences(seed: int, spread: float = 0.35) -> Scale:
    """Each micro-batch of each data-parallel rank has its own length, on all stages, forward and backward."""

    def scale(op: Op, batch: int) -> float:
        if batch < 0 or not op.kind.endswith("compute"):
            return 1.0
        return random.Random(hash((seed, op.dp, op.step, batch))).lognormvariate(0, spread)

    return scale


def interrupted(seed: int, every: int = 12, factor: float = 4.0) -> Scale:
    """One forward pass in `every` takes longer, anywhere."""
    chance = random.Random(seed)
    return lambda op, batch: factor if op.kind == "forward-compute" and chance.random() < 1 / every else 1.0


def slow_operation(kind: str, factor: float, every: int = 3) -> Scale:
    """Operations of one kind take longer in one step of several."""
    return lambda op, batch: factor if op.kind == kind and op.step % every == 0 else 1.0


__all__ = ["Job", "Op", "Shape", "job", "replace", "schedule", "write_csv"]
