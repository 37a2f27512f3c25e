"""Rules in shares of the devices' time: communication, the host, the pipeline, precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.metrics import waiting_share
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Pipeline, PipelineStage, Summary
from harness.experiment.advice import IDLE_FOR_DATA, Advice, Change
from harness.explain.asked import Avoidable, asked_of, global_batch, idle_share, measured, more_work, slowest
from harness.explain.causes import CAUSES
from harness.explain.commands import is_ours
from harness.format import device_time
from harness.format.format import percent
from harness.format.labels import are_cpus
from harness.replay.copy_causes import CopiedJob, copy_causes
from harness.theory.devices import peak_flops_per_s

_WAITING = 0.5  # share of the collectives' time from which waiting, not transfer, is the matter


def communication(s: Summary) -> Avoidable | None:
    """Exposed communication and idle time that waits for communication, without the part in a pipeline's bubble."""
    exposed = device_time.share(s.devices, "exposed_communication_ns")
    if exposed is None:
        return None
    share = exposed + (idle_share(s, "communication") or 0.0) - in_schedule(s)
    if share <= 0:
        return None
    # In a pipeline some waiting lies in the bubble, and how much is not known.
    waited = waiting_share(s) if s.pipeline is None else None
    what = "exposed communication" + (", without the pipeline's waiting" if s.pipeline else "")
    if waited is not None and waited > _WAITING:
        what += f", {percent(waited)} of it waiting for the last rank"
    return Avoidable(what, share, *_communication_advice(s, waited))


def _communication_advice(s: Summary, waited: float | None) -> Advice:
    """Why communication is exposed, and what to do: first an option that was switched off, then a late rank."""
    asked, seen = asked_of(s), measured(s)
    if (on_purpose := asked.on_purpose("communication", seen)) is not None:
        return on_purpose
    if waited is not None and waited > _WAITING and s.stragglers:
        rank = s.stragglers[0].rank
        change = Change(f"find in the timeline the work of rank {rank} before it arrives")
        return Advice(f"The others wait most often for rank {rank}.", (change,))
    return asked.send_less(seen)


_FASTER_DATA = Change(CAUSES["data-stall"].advice)


def data(s: Summary) -> Avoidable | None:
    share = idle_share(s, "data loading")
    if share is None:
        share = _data_by_metrics(s)
    if not share:
        return None
    advice = asked_of(s).on_purpose("data", measured(s)) or Advice(IDLE_FOR_DATA, (_FASTER_DATA,))
    return Avoidable("waiting for data", share, *advice)


def _data_by_metrics(s: Summary) -> float:
    """The share of data loading in the slowest rank's median step."""
    rank = slowest(s)
    return (rank.median_data_ns or 0) / rank.median_step_ns if rank and rank.median_step_ns else 0.0


def launch_bound(s: Summary) -> Avoidable | None:
    share = idle_share(s, "launch-bound")
    if not share:
        return None
    what, why = "launch-bound idle time", "The host issues kernels more slowly than the device runs them."
    if are_cpus(s.devices):
        what, why = "time between operators", "It is Python overhead: the operators are too small to hide it."
    changes = (
        *more_work(s, "twice the micro-batch, so that each launch has more work"),
        Change("larger batches, fused operators (torch.compile) or CUDA graphs"),
    )
    return Avoidable(what, share, why, changes)


def synchronisation(s: Summary) -> Avoidable | None:
    share = idle_share(s, "synchronisation")
    if not share:
        return None
    gaps = (g for d in s.devices for g in d.longest_gaps if g.cause == "synchronisation")
    gap = max(gaps, key=lambda g: g.duration_ns, default=None)
    where = f" The longest such gap is inside {gap.range}." if gap is not None and gap.range else ""
    why = f"The host waits for the device (.item(), a blocking copy, a synchronize) and launches nothing.{where}"
    change = Change("take the value out of the loop, or read it some steps later")
    return Avoidable("synchronisation", share, why, (change,))


def memory(s: Summary) -> Avoidable | None:
    share = device_time.share(s.devices, "exposed_memory_ns")
    if not share:
        return None
    unit = "period" if by_periodicity(s.steps.source) else "step"
    causes = copy_causes(s.copies, CopiedJob(s.devices, s.steps.counted, unit))
    if not causes:
        return Avoidable("exposed copies", share, "The device computes nothing meanwhile.", ())
    most = causes[0]
    return Avoidable(f"exposed copies: {most.what}", share, most.why, (Change(most.advice),))


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


def precision(s: Summary) -> Avoidable | None:
    """fp32 products on a GPU: at least half of their time goes away with 16 bits."""
    total = sum(d.window_ns for d in s.devices)
    slow = sum(k.duration_ns for k in s.kinds if k.precision == "fp32") / 2
    if are_cpus(s.devices) or not slow or not total:
        return None
    half = "fp16" if _without_bf16(s) else "bf16"
    why = f"Matrix products run in fp32; in {half} they take half the time or less (half of the time is counted here)."
    ours = is_ours(s) and half == "bf16" and not asked_of(s).in_bf16
    text = "mixed precision (bf16)" if half == "bf16" else "mixed precision: fp16, with loss scaling"
    change = Change(text, {"mixed_precision": True} if ours else None)
    return Avoidable("single precision", slow / total, why, (change,))


def _without_bf16(s: Summary) -> bool:
    """Whether a device is known to compute in fp16 but not in bf16, as before Ampere."""
    names = {d.name for d in s.devices if d.name}
    return any(peak_flops_per_s(n, "fp16") and not peak_flops_per_s(n, "bf16") for n in names)


def straggler(s: Summary) -> Avoidable | None:
    score, rank = s.steps.straggler_score, s.steps.slowest_rank
    if score is None or rank is None or score <= 1:
        return None
    why = f"Its step takes {score:.2f} × the median rank's, and the others wait for it."
    what = f"find the additional work of rank {rank} in the timeline, and test its node (slurm.sh -e 0)"
    return Avoidable(f"the slower rank {rank}", 1 - 1 / score, why, (Change(what),))
