"""What a data-parallel job sends that its model does not need: gradients of every micro-batch, further reductions, many
small ones, buffers. Knows each rank's collectives (Summary.traffic), not how they were found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.summary import Summary, Traffic
from harness.format.format import amount, duration

LEAST = 0.02  # of a step: less is not told
LEAST_OF_EXPOSED = 0.1
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_LARGE = 1 << 20  # bytes of a message that is no metric
_SMALL = 1 << 16  # a message of less takes about as long as an empty one
_SCALAR = 1 << 10
_MANY = 20  # messages of a step
_MORE = 1.15  # times the gradients' bytes
_SEVERAL = 1.5  # passes of a step
_FP32 = 4  # bytes


@dataclass(frozen=True)
class Excess:
    """what: a sentence. avoidable_ns: exposed communication of a step that goes away with it. advice: what to try."""

    what: str
    avoidable_ns: float
    advice: str


def excess(s: Summary) -> Excess | None:
    """What costs most of that which the model does not need; None: nothing noticeable is known."""
    rows = of_ranks(s.traffic)
    found = [e for rule in _RULES for e in rule(s, rows)]
    exposed = sum(row.step_exposed_ns for row in rows)
    step = s.steps.duration.median_ns if s.steps.duration else 0
    least = max(LEAST * step, LEAST_OF_EXPOSED * exposed)
    largest = max(found, key=lambda e: e.avoidable_ns, default=None)
    return largest if largest is not None and largest.avoidable_ns >= max(least, 1) else None


def why_not_split(s: Summary) -> str | None:
    """Of one rank of a job alone: why its communication is not split, and what would show it. None: others were read,
    or it has no communication."""
    size = s.world_size or max((c.group_size or 0 for c in s.collectives), default=0)
    if len(s.sources) != 1 or size < 2 or not s.collectives:
        return None
    rank = f"rank {s.ranks[0]}" if s.ranks else "one rank"
    return (
        f"Only {rank} of {size} was read, so its communication cannot be split into waiting for other ranks and "
        "transfer: the trace of any other rank of the group shows it."
    )


def of_ranks(rows: Sequence[Traffic]) -> list[Traffic]:
    """The rows of all ranks as those of one: counts are means, times those of the rank that takes least, since what
    others take longer is waiting for a late rank."""
    alike: dict[tuple[object, ...], list[Traffic]] = defaultdict(list)
    for row in rows:
        alike[row.kind, row.group, row.phase, row.bytes].append(row)
    return [_as_one(of) for of in alike.values()]


def _as_one(rows: Sequence[Traffic]) -> Traffic:
    counts = ("count_per_step", "pass_count_per_step", "used_pass_count_per_step")
    means = {name: sum(getattr(row, name) for row in rows) / len(rows) for name in counts}
    least = {
        name: min(getattr(row, name) for row in rows) for name in ("step_duration_ns", "step_exposed_ns")
    }
    return rows[0].model_copy(update={"rank": None, **means, **least})


def _gradients(rows: Sequence[Traffic]) -> list[Traffic]:
    """The reductions of backward whose group reduces nothing in forward, as tensor parallelism does."""
    forward = {(row.kind, row.group) for row in rows if row.phase == "forward"}
    return [
        row
        for row in rows
        if row.phase == "backward" and row.kind in _REDUCTIONS and (row.kind, row.group) not in forward
    ]


def _beside(rows: Sequence[Traffic]) -> list[Traffic]:
    """The collectives of the gradients' groups outside of forward and backward."""
    groups = {row.group for row in _gradients(rows)}
    return [row for row in rows if row.group in groups and row.phase not in ("forward", "backward")]


def _every_micro_batch(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    gradients = _gradients(rows)
    times = max((row.used_pass_count_per_step for row in gradients), default=0.0)
    if times < _SEVERAL:
        return
    repeated = [row for row in gradients if row.used_pass_count_per_step >= _SEVERAL]
    size = _bytes_per_step(repeated)
    each = f", {amount(size / times)} each time" if size else ""
    yield Excess(
        f"Gradients are reduced in every micro-batch: {times:.0f} times per step{each}.",
        _exposed(repeated) * (1 - 1 / times),
        "reduce the gradients once per step: no_sync() around all micro-batches but the last one (accelerate's "
        "accumulate() does it; ZeRO-2 and ZeRO-3 cannot)",
    )


def _further(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """Reductions beside the gradients: outside of backward, or in it where the model's size is known."""
    gradients = _gradients(rows)
    total = _bytes_per_step(gradients)
    more = [
        r
        for r in _beside(rows)
        if r.kind in _REDUCTIONS and (r.bytes or _LARGE) >= _LARGE and not _is_many(r)
    ]
    if not more and (row := _beyond_the_model(s, gradients)) is not None:
        more, total = [row], total - (row.bytes or 0) * row.count_per_step
    if not more:
        return
    count, size = sum(row.count_per_step for row in more), _bytes_per_step(more)
    beside = f"the gradients' {amount(total)}" if total else "the gradients"
    of_size, unknown = (
        (f" of {amount(size)}", "") if size else ("", " (its size was not recorded: record_shapes=True)")
    )
    one = count < _SEVERAL
    subject = f"An additional {_noun(more[0], 1)}" if one else f"{count:.0f} additional {_noun(more[0], 2)}"
    yield Excess(
        f"{subject}{of_size} per step{unknown} {'comes' if one else 'come'} beside {beside}, exposed for "
        f"{duration(_exposed(more))}.",
        _exposed(more),
        "leave this reduction out, do it in fewer steps, or start it earlier with async_op=True, so that it overlaps",
    )


def _beyond_the_model(s: Summary, gradients: Sequence[Traffic]) -> Traffic | None:
    """A reduction in backward by which more bytes are sent than the model has gradients."""
    parameters = max((t.parameters or 0 for t in s.training), default=0)
    sizes = [row for row in gradients if row.bytes and row.bytes >= _LARGE]
    more = _bytes_per_step(gradients) - _FP32 * parameters
    if (
        not parameters
        or more < (_MORE - 1) * _FP32 * parameters
        or any(r.used_pass_count_per_step > 1 for r in sizes)
    ):
        return None
    nearest = min(sizes, key=lambda r: abs((r.bytes or 0) * r.count_per_step - more), default=None)
    if nearest is None or abs((nearest.bytes or 0) * nearest.count_per_step / more - 1) > _MORE - 1:
        return None
    return nearest


def _small(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """Small collectives one after the other. Where phases are not known, only those of single values."""
    many = [row for row in rows if row.phase not in ("forward", "backward") and row.bytes is not None]
    scalars = [row for row in many if row.bytes is not None and row.bytes <= _SCALAR]
    chosen = [row for row in _beside(rows) if _is_many(row)] or [row for row in scalars if _is_many(row)]
    for row in chosen:
        size = f"of {amount(row.bytes)}" if row.bytes is not None else "(their size was not recorded)"
        yield Excess(
            f"{row.count_per_step:.0f} {_noun(row, 2)} {size} come one after the other in each step, exposed for "
            f"{duration(row.step_exposed_ns)}.",
            row.step_exposed_ns * (1 - 1 / row.count_per_step),
            "put the values into one tensor (torch.stack) and reduce it once per step, or in fewer steps",
        )


def _is_many(row: Traffic) -> bool:
    return row.count_per_step >= _MANY and (row.bytes is None or row.bytes <= _SMALL)


def _buffers(s: Summary, rows: Sequence[Traffic]) -> Iterator[Excess]:
    """DDP broadcasts a module's buffers before each forward, also before one that is recomputed."""
    groups = {row.group for row in _gradients(rows)}
    sent = [
        r for r in rows if r.kind == "broadcast" and r.group in groups and r.phase in ("forward", "backward")
    ]
    if not sent:
        return
    size = _bytes_per_step(sent)
    where = "each forward pass" + (
        ", also when it is recomputed" if any(r.phase == "backward" for r in sent) else ""
    )
    sent_bytes = f", {amount(size)} per step" if size else ""
    yield Excess(
        f"DDP broadcasts the model's buffers in {where}{sent_bytes}, exposed for {duration(_exposed(sent))}.",
        _exposed(sent),
        "DistributedDataParallel(broadcast_buffers=False), if the ranks' buffers may differ or are constant",
    )


_RULES = (_every_micro_batch, _further, _small, _buffers)


def _exposed(rows: Sequence[Traffic]) -> float:
    return sum(row.step_exposed_ns for row in rows)


def _bytes_per_step(rows: Sequence[Traffic]) -> float:
    """0 where a size is not known."""
    known = all(row.bytes is not None for row in rows)
    return sum((row.bytes or 0) * row.count_per_step for row in rows) if known else 0.0


def _noun(row: Traffic, count: int) -> str:
    return row.kind.replace("_", "-") + "s" * (count > 1)
