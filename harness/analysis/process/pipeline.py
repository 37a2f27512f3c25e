"""Pipeline stages and their bubble: the schedule of one rank, and of all ranks together.

The program's own ranges name the stages: `forward mb<k> stage<s>` and `backward mb<k> stage<s>`. Sends and receives are
bubble, never work; the collectives of tensor parallelism are part of the work. The time in which a stage does not work,
but communicates or waits for communication, is part of its bubble."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching, used
from harness.analysis.process.device import communicating_alone
from harness.analysis.process.idle import COMMUNICATION, NOT_WORK
from harness.analysis.process.intervals import Intervals, RangeTree, clip, difference, intersection, length, union
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.process.ranges import device_spans
from harness.analysis.process.steps import ProcessSteps, by_periodicity
from harness.analysis.process.view import ProcessView
from harness.analysis.summary import Pipeline, PipelineStage, SummaryPart, Withheld
from harness.theory.flops import expected_bubble
from harness.traces.trace import I64
from harness.traces.vocabulary import POINT_TO_POINT, collective_kind, is_communication

_MICROBATCH = re.compile(r"^(forward|backward) mb(\d+) stage(\d+)$")
_TRANSFER = re.compile(r"^(send|recv)", re.IGNORECASE)


class Iteration(SummaryPart, kw_only=True):
    """One rank's part in one iteration. Times are on the rank's own clock; lengths in nanoseconds."""

    start_ns: int  # first forward's start
    end_ns: int  # last backward's end
    busy_ns: int
    send_recv_ns: int
    warmup_ns: int  # until the first backward starts
    cooldown_ns: int  # from the last forward's end, or the first backward's start where that is later
    communication_ns: int = 0  # of the time without work: time with communication and no computation
    beside_work_ns: int = 0  # of its work: time with messages between stages and no operator
    # As communication_ns, from and to the neighbouring iterations: other stages may work there.
    outside: list[tuple[int, int]] = []


class StagePart(SummaryPart, kw_only=True):
    """One rank as a stage, before the ranks are merged."""

    stages: list[int]
    microbatches: int
    window_ns: int
    busy_ns: int
    iterations: list[Iteration]


@dataclass(frozen=True)
class Microbatches:
    """The forward and backward passes of one process, n each, in no order. `forward` false: backward."""

    forward: NDArray[np.bool_]
    number: I64
    stage: I64
    host_ns: I64  # when the program began it
    start_ns: I64  # on the device
    end_ns: I64

    def of_step(self, steps: ProcessSteps, start_ns: int, end_ns: int) -> NDArray[np.bool_]:
        """Which passes belong to a step with these marks. The time on the host counts, since a device may run a step
        later; but steps that are a kernel's periodicity, or on the device, are times of the device."""
        of_device = steps.on_device or by_periodicity(steps.source)
        began = self.start_ns if of_device else self.host_ns
        return (began >= start_ns) & (began < end_ns)


def stage_of(m: MeasuredProcess, device: int) -> StagePart | None:
    """This process as a pipeline stage, its device as the worker; None without micro-batches or counted steps."""
    steps, found = m.steps, microbatches(m.view, m.nesting, m.owner)
    if found is None or steps.window is None:
        return None
    moves = _sends_or_receives(m.view)
    moving = _sets(m, device, moves)
    if m.view.on_cpu:  # it works in its forward and backward ranges, with the interpreter
        transfers = _transfers(m.view)
        work = difference(union(found.start_ns, found.end_ns), transfers)
    else:
        transfers, work = moving, _sets(m, device, (m.kinds.event_class != NOT_WORK) & ~moves)
    counted = np.flatnonzero(steps.counted)
    passes = (found.of_step(steps, int(steps.start_ns[i]), int(steps.end_ns[i])) for i in counted)
    iterations = [it for mine in passes if (it := _iteration(found, mine, work, transfers)) is not None]
    if not iterations:
        return None
    start, end = steps.window
    alone = communicating_alone(m, device)
    other_messages = _sets(m, device, (m.kinds.event_class == COMMUNICATION) & ~moves)
    beside = difference(intersection(moving, alone), other_messages)
    iterations = _with_communication(iterations, difference(alone, work), intersection(beside, work))
    return StagePart(
        stages=sorted(set(found.stage.tolist())),
        microbatches=len(set(found.number.tolist())),
        window_ns=end - start,
        busy_ns=length(clip(work, start, end)),
        iterations=iterations,
    )


def microbatches(view: ProcessView, nesting: RangeTree, owner: I64) -> Microbatches | None:
    """The passes that the program's ranges name; None where the ranges name no micro-batch."""
    ranges = view.ranges
    parsed = {n: m for n in used(ranges.name) if (m := _MICROBATCH.match(view.names[n]))}
    rows = np.flatnonzero(np.isin(ranges.name, list(parsed)))
    if len(rows) == 0:
        return None
    matches = [parsed[int(n)] for n in ranges.name[rows]]
    host, start, end = ranges.start_ns[rows], ranges.start_ns[rows], ranges.end_ns[rows]
    if not view.on_cpu:
        start, end = device_spans(view.events, owner, nesting.parent, rows)
    ran = end > start
    return Microbatches(
        np.array([m[1] == "forward" for m in matches])[ran],
        np.array([int(m[2]) for m in matches])[ran],
        np.array([int(m[3]) for m in matches])[ran],
        host[ran],
        start[ran],
        end[ran],
    )


def _transfers(view: ProcessView) -> Intervals:
    """Time in sends and receives on a CPU: of the program's ranges of that name, else of the collectives.

    Under the interleaved schedule gloo sends messages during the work; only the time that waits for them counts."""
    ranges, rows = view.ranges, view.collectives
    waits = matching(ranges.name, view.names, _TRANSFER.match)
    if waits.any():
        return union(ranges.start_ns[waits], ranges.end_ns[waits])
    moves = _are_point_to_point(view)
    return union(rows.start_ns[moves], rows.end_ns[moves])


def _sends_or_receives(view: ProcessView) -> NDArray[np.bool_]:
    """Which events are sends or receives: by their arguments, else by their names."""
    events, rows = view.events, view.collectives

    def is_transfer(name: str) -> bool:
        """A kernel of NCCL, or a span of gloo."""
        return (is_communication(name) or name.startswith("gloo:")) and collective_kind(name) in POINT_TO_POINT

    chosen = matching(events.name, view.names, is_transfer)
    has_event = rows.event >= 0
    chosen[rows.event[has_event]] = _are_point_to_point(view)[has_event]
    return chosen


def _are_point_to_point(view: ProcessView) -> NDArray[np.bool_]:
    """Which of the recorded collectives are sends or receives."""
    kind = view.collectives.kind
    return np.isin(kind, [i for i in np.unique(kind) if i >= 0 and view.names[i] in POINT_TO_POINT])


def _sets(m: MeasuredProcess, device: int, chosen: NDArray[np.bool_]) -> Intervals:
    rows, events = m.rows[device], m.view.events
    mine = chosen[rows]
    return union(events.start_ns[rows][mine], events.end_ns[rows][mine])


def _iteration(
    microbatches: Microbatches, mine: NDArray[np.bool_], intervals: Intervals, transfers: Intervals
) -> Iteration | None:
    """One step's passes, `mine`, as a part of a schedule; None without a forward or without a backward."""
    forward, backward = mine & microbatches.forward, mine & ~microbatches.forward
    if not forward.any() or not backward.any():
        return None
    start, end = int(microbatches.start_ns[mine].min()), int(microbatches.end_ns[mine].max())
    first_backward = int(microbatches.start_ns[backward].min())
    # with few micro-batches the last forward ends before the first backward
    last_forward = max(int(microbatches.end_ns[forward].max()), first_backward)
    span = Intervals(np.array([start]), np.array([end]))
    return Iteration(
        start_ns=start,
        end_ns=end,
        busy_ns=length(intersection(intervals, span)),
        send_recv_ns=length(intersection(transfers, span)),
        warmup_ns=first_backward - start,
        cooldown_ns=max(end - last_forward, 0),
    )


def _with_communication(iterations: list[Iteration], alone: Intervals, intervals: Intervals) -> list[Iteration]:
    """The iterations with the part of `alone` in and around each, and the part of `intervals` in each."""
    first, last = (int(alone.start[0]), int(alone.end[-1])) if len(alone.start) else (0, 0)
    ends = [first, *(it.end_ns for it in iterations[:-1])]
    starts = [*(it.start_ns for it in iterations[1:]), last]
    return [
        it.model_copy(
            update={
                "communication_ns": length(clip(alone, it.start_ns, it.end_ns)),
                "beside_work_ns": length(clip(intervals, it.start_ns, it.end_ns)),
                "outside": [*_pairs(alone, before, it.start_ns), *_pairs(alone, it.end_ns, after)],
            }
        )
        for it, before, after in zip(iterations, ends, starts, strict=True)
    ]


def _pairs(of: Intervals, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
    if end_ns <= start_ns:
        return []
    inside = clip(of, start_ns, end_ns)
    return list(zip(inside.start.tolist(), inside.end.tolist(), strict=True))


def pipeline(parts: list[tuple[int | None, int, StagePart]], world_size: int | None = None) -> Pipeline | None:
    """All ranks' stages together. `parts`: (rank, clock offset to subtract in nanoseconds, stage part).

    The schedule of an iteration spans from the first forward of any stage to the last backward of any stage. The
    number of stages, and so the expected bubble, is given only where no stage can be missing.
    """
    if len({min(part.stages) for _, _, part in parts}) < 2:
        return None
    common = min(len(part.iterations) for _, _, part in parts)
    spans = [_span(parts, i, common) for i in range(common)]
    stages = [_stage(rank, part, [(a + offset, b + offset) for a, b in spans]) for rank, offset, part in parts]
    stages.sort(key=lambda s: (s.stage, -1 if s.rank is None else s.rank))
    depth, virtual = _depth(parts, world_size), max(len(part.stages) for _, _, part in parts)
    microbatches = max(part.microbatches for _, _, part in parts)
    return Pipeline(
        stages=depth,
        microbatches=microbatches,
        virtual_stages=virtual,
        expected_bubble_fraction=None if depth is None else expected_bubble(depth, microbatches, virtual),
        mean_bubble_fraction=sum(s.schedule_bubble_fraction for s in stages) / len(stages),
        per_stage=stages,
    )


def _depth(parts: list[tuple[int | None, int, StagePart]], world_size: int | None) -> int | None:
    """How many ranks follow each other in the pipeline; None where a stage may be missing: the stages that were read
    leave a gap, or one more stage of as many ranks would fit into the world size."""
    ranks_of = Counter(min(part.stages) for _, _, part in parts)
    found = {stage for _, _, part in parts for stage in part.stages}
    whole = len(ranks_of) * max(len(part.stages) for _, _, part in parts)
    further_fits = world_size is not None and max(ranks_of.values()) * (len(ranks_of) + 1) <= world_size
    return None if found != set(range(whole)) or further_fits else len(ranks_of)


def withheld_theory(pipeline: Pipeline | None) -> list[Withheld]:
    """Why no expected bubble is given."""
    if pipeline is None or pipeline.stages is not None:
        return []
    read = ", ".join(str(stage) for stage in sorted({s.stage for s in pipeline.per_stage}))
    reason = f"the number of pipeline stages is not known: only the ranks of stage {read} were read"
    return [Withheld(field="pipeline.stages, expected_bubble_fraction", reason=reason)]


def _span(parts: list[tuple[int | None, int, StagePart]], i: int, common: int) -> tuple[int, int]:
    """The schedule of one iteration on the common clock."""
    chosen = [(part.iterations[len(part.iterations) - common + i], offset) for _, offset, part in parts]
    return (min(it.start_ns - offset for it, offset in chosen), max(it.end_ns - offset for it, offset in chosen))


def _stage(rank: int | None, part: StagePart, spans: list[tuple[int, int]]) -> PipelineStage:
    """`spans`: the schedule of each of the last iterations, on this rank's own clock."""
    used = part.iterations[len(part.iterations) - len(spans) :]
    schedule_ns = sum(end - start for start, end in spans)
    busy = sum(it.busy_ns for it in used)
    own = sum(it.end_ns - it.start_ns for it in used)
    warmup, cooldown = sum(it.warmup_ns for it in used), sum(it.cooldown_ns for it in used)
    return PipelineStage(
        stage=min(part.stages),
        rank=rank,
        window_ns=part.window_ns,
        busy_ns=part.busy_ns,
        bubble_fraction=1 - part.busy_ns / part.window_ns,
        schedule_ns=schedule_ns,
        schedule_busy_ns=busy,
        schedule_bubble_fraction=1 - busy / schedule_ns,
        warmup_ns=warmup,
        steady_ns=own - warmup - cooldown,
        cooldown_ns=cooldown,
        send_recv_ns=sum(it.send_recv_ns for it in used),
        bubble_communication_ns=sum(map(_communication, used, spans)),
        work_send_recv_ns=sum(it.beside_work_ns for it in used),
    )


def _communication(it: Iteration, span: tuple[int, int]) -> int:
    """The communication in the bubble of one iteration: in the stage's own part, and while only other stages worked."""
    start, end = span
    return it.communication_ns + sum(max(min(b, end) - max(a, start), 0) for a, b in it.outside)
