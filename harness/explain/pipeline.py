"""The rule about a pipeline's bubble, which includes the sends and receives in which a stage waits for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.summary import Pipeline, PipelineStage, Summary
from harness.experiment.advice import Change
from harness.explain.finding import Avoidable, global_batch
from harness.format.format import percent

_UNEVEN = 1.5  # times the expected bubble: from here the bubble has another cause beside the schedule
_MOSTLY = 0.5  # share of the unexpected bubble: from here unequal stages are the cause
_WORTH_SAYING = 0.005  # of the time


def bubble(s: Summary) -> Avoidable | None:
    """The time inside their schedules in which the stages do not work."""
    p = s.pipeline
    if p is None:
        return None
    slow, why = _slow_stage(p), _of_the_schedule(p)
    batch = global_batch(s)
    text = "more micro-batches: twice the global batch at the same micro-batch"
    change = Change(text, {"global_batch_size": 2 * batch} if batch else None)
    if slow is not None:
        why += (
            f"; the rest is waiting for stage {slow.stage}, which works {percent(_busy(slow))} of that time"
        )
        if _by_inequality(p, slow) >= (p.expected_bubble_fraction or 0.0):
            change = Change(
                f"give stage {slow.stage} fewer layers: the embedding and the loss take time as well"
            )
    share = _of_the_window(p.per_stage)
    return Avoidable("the pipeline's bubble", share, f"{why}.{_as_communication(s)}", (change,))


def in_schedule(s: Summary) -> float:
    """The communication that belongs to the schedule, as a share of the devices' time: in the bubble, or messages
    between stages during a stage's work."""
    return _of_stages(s, lambda x: x.bubble_communication_ns + x.work_send_recv_ns)


def _of_stages(s: Summary, part: Callable[[PipelineStage], int]) -> float:
    stages = s.pipeline.per_stage if s.pipeline else []
    return sum(map(part, stages)) / max(sum(x.window_ns for x in stages), 1)


def _as_communication(s: Summary) -> str:
    """A remark: the split shows a part of the bubble as communication."""
    share = _of_stages(s, lambda x: x.bubble_communication_ns)
    if share < _WORTH_SAYING:
        return ""
    return (
        f" A part of it, {percent(share)} of the time, is shown as communication: "
        "a stage waits in its messages for the work of another stage."
    )


def _slow_stage(p: Pipeline) -> PipelineStage | None:
    """The stage for which the others wait; None unless unequal stages explain most of the unexpected bubble."""
    expected = p.expected_bubble_fraction
    if expected is None or not p.per_stage or p.mean_bubble_fraction <= _UNEVEN * expected:
        return None
    slow = max(p.per_stage, key=lambda x: x.schedule_busy_ns)
    return slow if _by_inequality(p, slow) >= _MOSTLY * (p.mean_bubble_fraction - expected) else None


def _by_inequality(p: Pipeline, slow: PipelineStage) -> float:
    """The share of the schedule that is empty because stages take unequal time. With stages that work t on average and
    T at most, a schedule of m micro-batches is (m + p - 1) · T long and its stages work m · t."""
    mean_ns = sum(x.schedule_busy_ns for x in p.per_stage) / len(p.per_stage)
    return (1 - (p.expected_bubble_fraction or 0.0)) * (1 - mean_ns / max(slow.schedule_busy_ns, 1))


def _of_the_schedule(p: Pipeline) -> str:
    """The empty share of the schedule, and the share that theory expects where all stages are known."""
    measured = f"It is {percent(p.mean_bubble_fraction)} of the schedule"
    if p.expected_bubble_fraction is None:
        return f"{measured}; the expected bubble is not known, because stages may be missing"
    alone = f"and this schedule leaves {percent(p.expected_bubble_fraction)} empty"
    shared = f"{p.microbatches} micro-batch{'es' * (p.microbatches != 1)}"
    return f"{measured}: {p.stages} stages share {shared}, {alone}"


def _of_the_window(stages: Sequence[PipelineStage]) -> float:
    """The stages' bubble as a share of the window, which is longer than the schedule: it includes the optimizer."""
    empty = sum(stage.schedule_ns - stage.schedule_busy_ns for stage in stages)
    return empty / max(sum(stage.window_ns for stage in stages), 1)


def _busy(stage: PipelineStage) -> float:
    return stage.schedule_busy_ns / max(stage.schedule_ns, 1)
