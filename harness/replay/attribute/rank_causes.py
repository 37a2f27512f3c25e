"""Rules about work: a rank or a stage that has more than the others, and steps that have more than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.phases import Phase
from harness.replay.attribute.suspect import Cause, Suspect
from harness.replay.graph.graph import N_PHASES, NEVER, WORK_TIME, TimeCategory, slots
from harness.replay.measure.context import OwnCode, ReplayContext
from harness.replay.measure.hits import LEAST, hit, in_steps, runs_in
from harness.replay.remove.edits import ideal, with_less
from harness.traces.trace import F64, I64

_UNEVEN = 1.08  # a rank's work over the other ranks', from which it has more
_SLOWER = 1.3  # the same, from which a core is called slower: less may be the other threads of its core
_HEAVIER = 0.15  # a step's work above the median step's, from which it has more
_MUCH_MORE = 1.5  # a stage's forward over the others', from which its layers are not the reason
_APART = 4.0  # standard deviations of the other steps' work, from which steps have more than by chance
_SPREAD = 0.5  # how much the excess of two phases may differ to be called the same
_OF_MORE = 0.25  # of a rank's excess: an optimizer with less of it does not run on a slower core
_NOT_SOME = 0.5  # of the steps: what is in more of them is not in some
_OF_LARGEST = 0.5  # of the largest excess of a rank: ranks with less are not told with it
_LONGER = 1.6  # a rank's operators over the other ranks' in a phase, from which it has others: less may be its core
_MORE_CALLS = 1.1  # a rank's operators over the other ranks' median, from which it has more of them
_A_PART = 0.02  # of a process's kernels, from which a kernel is looked at
_SEVERAL = 2  # kernels
_ALL_ALIKE = 0.5  # of the largest excess of a kernel, which each one has on a slower device
_SOME = 0.05  # of the time in such code, from which a slot of it is looked at
_MOSTLY_WORK = 0.5  # of the time in such code: from there on it computes, else it is Python
# What operators are called that others do not have: those of data loading are waited for like any batch.
_IN_PHASE: dict[int | None, Cause] = {Phase.DATA: Cause.DATA_STALL, Phase.EVALUATION: Cause.EVALUATION}
_FORWARD = (*WORK_TIME, TimeCategory.HOST_GAP)
# Phases in which a rank's operators are its own matter.
_ELSEWHERE = (Phase.DATA, Phase.OPTIMIZER, Phase.BETWEEN, Phase.OTHER)


class _More(NamedTuple):
    """A process with more work than the others: by how much, in which steps, and every arc's length without it."""

    process: int
    ratio: float
    steps: NDArray[np.bool_]
    lengths: I64


def uneven(context: ReplayContext) -> Iterator[Suspect]:
    """Some ranks have more work than the others, or stages of a pipeline than the other stages: in forward and backward
    where their work is known, else in the whole step. Those with the same cause are told together: without one of them
    the others are still waited for."""
    if context.processes < 2:
        return
    groups: dict[tuple[Cause, int | None], list[_More]] = {}
    phases, work = _compared(context)
    by_step = np.sum([context.of(WORK_TIME, phase) for phase in phases], axis=0)
    forward = context.of(_FORWARD, Phase.FORWARD)
    for process in range(context.processes):
        others = [p for p in range(context.processes) if p != process]
        own, usual = work[:, process], np.median(work[:, others], axis=1)
        if not usual.all() or own.sum() < _UNEVEN * usual.sum():
            continue
        if context.is_told(process, [s for each in phases for s in slots(WORK_TIME, each)], (own - usual).sum()):
            continue
        cause, phase = _kind_of_more(context, process, others, own / usual)
        steps = hit(np.maximum(by_step[process] - np.median(by_step[others], axis=0), 0))
        if cause is Cause.EXTRA_COMPUTE and _in_some(steps):
            continue  # told by `heavier`
        if cause is Cause.NOISY_NEIGHBOUR and own.sum() < _SLOWER * usual.sum():
            continue
        if phase == Phase.FORWARD:  # in each step what it has more than the others on average of the steps
            more = (forward[process] - np.median(forward[others], axis=0)).mean()
            lengths = with_less(context.job, process, slots(_FORWARD, Phase.FORWARD), np.full(forward.shape[1], more))
        else:  # what held its operators up is less as well: the less it runs, the less often it loses its core
            factor = context.job.unchanged()
            for each, by in zip(phases, usual / own, strict=True):
                factor[process, slots((*WORK_TIME, TimeCategory.HOST_HELD), each)] = min(by, 1.0)
            lengths = context.job.scaled(factor)
        found = _More(process, float(own.sum() / usual.sum()), steps, lengths)
        groups.setdefault((cause, phase), []).append(found)
    for (cause, phase), members in groups.items():
        yield _of_all(context, cause, phase, members)


def elsewhere(context: ReplayContext) -> Iterator[Suspect]:
    """Operators outside of forward and backward of which some ranks have more than the others. On CPUs only: a kernel
    belongs to no phase. A rank whose forward and backward are longer too has as much more to be expected. As many
    operators that take longer are not more work: two healthy processes can differ by that much."""
    if not context.on_cpu or context.processes < 2:
        return
    passes = sum(context.of(WORK_TIME, phase).mean(axis=1) for phase in (Phase.FORWARD, Phase.BACKWARD))
    if not passes.all():
        return  # told by `uneven`
    for phase in _ELSEWHERE:
        work, calls, members = context.of(WORK_TIME, phase), context.stretches(WORK_TIME, phase), []
        for process in range(context.processes):
            others = [p for p in range(context.processes) if p != process]
            slower = max(float(passes[process] / max(np.median(passes[others]), 1)), 1.0)
            usual = slower * np.median(work[others], axis=0)
            more, steps = work[process] - usual, hit(np.maximum(work[process] - usual, 0))
            if work[process].sum() < _LONGER * usual.sum() or more.mean() < LEAST * context.step_ns:
                continue
            if context.is_told(process, slots(WORK_TIME, phase), float(more.mean())):
                continue
            if calls[process] < _MORE_CALLS * np.median(calls[others]):
                continue
            if not _in_some(steps):  # else told by `heavier`
                lengths = with_less(context.job, process, slots(WORK_TIME, phase), np.maximum(more, 0))
                members.append(_More(process, float(work[process].sum() / max(usual.sum(), 1)), steps, lengths))
        if members:
            found = _of_all(context, _IN_PHASE.get(phase, Cause.EXTRA_COMPUTE), phase, members)
            evidence = in_steps(np.stack([work[own.process] for own in members]).max(axis=0), found.steps)
            yield replace(found, evidence=evidence, slots=tuple(slots(WORK_TIME, phase)))


def only_here(context: ReplayContext) -> Iterator[Suspect]:
    """Code of the user's that some ranks run and the others do not, wherever in the step."""
    groups: dict[object, list[OwnCode]] = {}
    for own in context.code_alone:
        groups.setdefault(own.where, []).append(own)
    for members in groups.values():
        yield _of_own(context, members)


def _without_own(context: ReplayContext, process: int, less_ns: F64) -> I64:
    """Every arc's length with less time of a process; less_ns: shape (steps, SLOTS)."""
    job, amounts = context.job, context.job.amounts
    share = np.minimum(less_ns / np.maximum(context.time_ns[process], 1), 1.0)
    step = job.step[amounts.arc]
    mine = (job.process[amounts.arc] == process) & (step >= 0)
    less = np.zeros(len(amounts.ns))
    less[mine] = amounts.ns[mine] * share[step[mine], amounts.slot[mine]]
    kept = job.lengths > NEVER
    lengths: I64 = job.lengths - np.where(kept, np.rint(np.bincount(amounts.arc, less, job.arcs)), 0).astype(np.int64)
    return lengths


def _of_own(context: ReplayContext, members: list[OwnCode]) -> Suspect:
    ns = np.stack([own.ns for own in members])
    by_slot, by_step = ns.sum(axis=(0, 1)), ns.sum(axis=2).max(axis=0)
    phase = int(by_slot.reshape(-1, N_PHASES).sum(axis=0).argmax())
    worked = by_slot[slots(WORK_TIME)].sum() > _MOSTLY_WORK * by_slot.sum()
    steps = runs_in(by_step)
    return Suspect(
        _IN_PHASE.get(phase) or (Cause.EXTRA_COMPUTE if worked else Cause.HOST_STALL),
        tuple(own.process for own in members),
        steps,
        np.minimum.reduce([_without_own(context, own.process, own.ns) for own in members]),
        in_steps(by_step, steps),
        phase,
        slots=tuple(np.flatnonzero(by_slot >= _SOME * by_slot.sum()).tolist()),
        alone=members[0].function,
        own_ns=float(by_step.mean()),
    )


def _of_all(context: ReplayContext, cause: Cause, phase: int | None, ranks_with_more: list[_More]) -> Suspect:
    members_are = "stages" if _in_pipeline(context) else "ranks"
    most = max(own.ratio - 1 for own in ranks_with_more)
    kept = [own for own in ranks_with_more if own.ratio - 1 >= _OF_LARGEST * most]
    return Suspect(
        cause,
        tuple(own.process for own in kept),
        np.logical_or.reduce([own.steps for own in kept]),
        np.minimum.reduce([own.lengths for own in kept]),
        f"{max(own.ratio for own in kept):.2f} times the work of the other {members_are}",
        phase,
        standing=cause is Cause.UNEVEN_STAGES,
        # on a CPU in the host's time of a phase, else in kernels, which belong to none
        slots=tuple(slots(_FORWARD, phase) if context.on_cpu else slots(WORK_TIME)),
    )


def _compared(context: ReplayContext) -> tuple[tuple[int | None, ...], F64]:
    """The phases in which ranks are compared (None: all of the step), and each rank's mean work in them."""
    by_phase: tuple[int | None, ...] = (Phase.FORWARD, Phase.BACKWARD)
    for phases in by_phase, (None,):
        work = np.stack([context.of(WORK_TIME, phase).mean(axis=1) for phase in phases])
        if work.all():
            break
    return phases, work


def _in_pipeline(context: ReplayContext) -> bool:
    return any(call.kind == "send" for call in context.job.calls)


def _kind_of_more(context: ReplayContext, process: int, others: list[int], ratio: F64) -> tuple[Cause, int | None]:
    """What makes a rank's work larger, by its ratio to the others' in forward and backward, or in the whole step.

    More to compute in forward or in backward alone is not of the batch, with which both are larger. A core is slower,
    and the work not more, where the optimizer takes longer too, and either the time between operators or the backward
    pass alone."""
    only_forward = len(ratio) > 1 and ratio[1] - 1 < _SPREAD * (ratio[0] - 1)
    if _in_pipeline(context):
        extra = only_forward and ratio[0] > _MUCH_MORE
        return (Cause.EXTRA_COMPUTE, Phase.FORWARD) if extra else (Cause.UNEVEN_STAGES, None)
    if only_forward:
        return Cause.EXTRA_COMPUTE, Phase.FORWARD
    if len(ratio) == 1:
        slower = not context.on_cpu and _is_slower(context, process, others)
        return (Cause.SLOW_DEVICE if slower else Cause.EXTRA_COMPUTE), None
    only_backward = ratio[0] - 1 < _SPREAD * (ratio[1] - 1)
    optimizer = context.of(WORK_TIME, Phase.OPTIMIZER).mean(axis=1)
    usual = np.median(optimizer[others])  # the same for any batch
    with_optimizer = not usual or bool(optimizer[process] / usual - 1 >= _OF_MORE * (ratio.mean() - 1))
    if only_backward and not with_optimizer:
        return Cause.EXTRA_COMPUTE, Phase.BACKWARD
    gap = context.of((TimeCategory.HOST_GAP,)).mean(axis=1)
    slower = only_backward or gap[process] > _UNEVEN * np.median(gap[others])
    return (Cause.NOISY_NEIGHBOUR if slower and with_optimizer else Cause.LONG_SEQUENCES), None


def _is_slower(context: ReplayContext, process: int, others: list[int]) -> bool:
    """Whether a process runs the same kernels as the others, and all of them take longer: also those whose time does
    not depend on the batch, as the optimizer's."""
    work = context.of(WORK_TIME).mean(axis=1)[others]
    nearest = others[int(np.argsort(work)[(len(others) - 1) // 2])]
    own, usual = context.kernel_means(process), context.kernel_means(nearest)
    total = sum(count * mean for count, mean in own.values())
    same = {name for name, (count, mean) in own.items() if count * mean >= _A_PART * total}
    if len(same) < _SEVERAL or any(name not in usual or usual[name][0] != own[name][0] for name in same):
        return False
    ratios = [own[name][1] / max(usual[name][1], 1) - 1 for name in same]
    return min(ratios) >= _ALL_ALIKE * max(ratios) > 0


def in_turn(context: ReplayContext) -> Iterator[Suspect]:
    """Ranks that wait for each other in turn: what a step takes with an ideal network beyond the rank with most to do.
    One rank that is always late waits for nobody, so that its own causes explain it. Where all messages are sends and
    receives, the ranks are stages, and this is the pipeline's bubble."""
    job, exposed = context.job, context.device_time["exposed_communication_ns"]
    if context.on_cpu or context.processes < 2 or context.summary.pipeline is not None or job.alone:
        return
    if not len(job.messages.arc) or not np.nansum(exposed):
        return
    together = ideal(context.job)
    apart = job.apart(together, np.ones(len(job.messages.arc), np.bool_))
    step_ns, own_ns = job.replay(np.stack([together, apart])).astype(np.float64)
    saved = step_ns.mean(axis=0) - own_ns.mean(axis=1).max()
    most = float(np.nanmean(exposed))
    if saved.mean() <= 0:
        return
    yield Suspect(
        Cause.BUBBLE if _in_pipeline(context) else Cause.IMBALANCE,
        context.everyone,
        context.every_step,
        lengths=None,
        standing=True,
        saved_ns=saved * min(1.0, most / saved.mean()),
    )


def extra(context: ReplayContext) -> Iterator[Suspect]:
    """Work that other steps, or other ranks, do not have."""
    yield from only_here(context)
    yield from heavier(context)
    yield from elsewhere(context)


def heavier(context: ReplayContext) -> Iterator[Suspect]:
    """Some steps have more work than the others: on a CPU operators in forward, and the time between them, or operators
    elsewhere; on a GPU, where a kernel belongs to no phase, kernels. Ranks with the same steps are told together."""
    if not context.on_cpu:
        yield from _heavier(context, WORK_TIME, None)
        return
    yield from _heavier(context, _FORWARD, Phase.FORWARD)
    for phase in _ELSEWHERE:
        yield from _heavier(context, WORK_TIME, phase)


def _heavier(context: ReplayContext, categories: tuple[TimeCategory, ...], phase: int | None) -> Iterator[Suspect]:
    groups: dict[bytes, list[tuple[int, I64, F64]]] = {}
    for process in range(context.processes):
        work = context.of(categories, phase)[process]
        usual = float(np.median(work))
        more = work - usual
        steps = (more > max(_HEAVIER * usual, LEAST * context.step_ns)) & hit(np.maximum(more, 0))
        if (not usual and phase not in _ELSEWHERE) or not _in_some(steps):
            continue
        more = work - float(np.median(work[~steps]))
        usual_ones = ~steps & (np.arange(len(steps)) >= context.settled)
        if more[steps].mean() < _APART * more[usual_ones].std():
            continue
        if context.is_told(process, slots(categories, phase), float(np.where(steps, more, 0).mean())):
            continue
        lengths = _with_less_work(context, process, slots(categories, phase), np.where(steps, more, 0))
        groups.setdefault(steps.tobytes(), []).append((process, lengths, more))
    every = np.logical_or.reduce([np.frombuffer(hits, np.bool_) for hits in groups]) if groups else np.zeros(1)
    if len(groups) > 1 and not context.on_cpu and every.mean() > _NOT_SOME:
        return  # told by `in_turn`
    for hits, members in groups.items():
        steps = np.frombuffer(hits, np.bool_)
        yield Suspect(
            _IN_PHASE.get(phase, Cause.EXTRA_COMPUTE),
            tuple(process for process, _, _ in members),
            steps,
            np.minimum.reduce([lengths for _, lengths, _ in members]),
            in_steps(np.mean([more for _, _, more in members], axis=0), steps, " more"),
            phase,
            slots=tuple(slots(categories, phase)),
        )


def _with_less_work(context: ReplayContext, process: int, chosen: list[int], less_ns: F64) -> I64:
    """Every arc's length with a process's work smaller by `less_ns` in each step. On a CPU the longest operators become
    shorter. Kernels become so between the messages where they take longer than in other steps; if the steps' messages
    differ, all of a step do."""
    if context.on_cpu:
        return with_less(context.job, process, chosen, less_ns)
    lengths: I64 = context.job.lengths.copy()
    stretches = _between_messages(context, process, chosen)
    usual = np.median(stretches.ns[less_ns <= 0], axis=0)
    for step in np.flatnonzero(less_ns > 0).tolist():
        own = stretches.ns[step]
        more = np.maximum(own - usual, 0)
        more *= min(1.0, less_ns[step] / max(more.sum(), 1.0))
        share = np.append(more / np.maximum(own, 1), 0)[stretches.line_number[step]]
        lengths[stretches.arc] -= np.rint(stretches.arc_ns * share).astype(np.int64)
    return lengths


class _Stretches(NamedTuple):
    """A process's kernels in the k stretches between its messages in each of s steps: `ns` (s, k). arc: all n arcs that
    have some of them; arc_ns: how much; line_number: (s, n), which stretch of a step an arc is in, k: none."""

    ns: F64
    arc: I64
    arc_ns: I64
    line_number: I64


def _between_messages(context: ReplayContext, process: int, chosen: list[int]) -> _Stretches:
    """One stretch for the whole step where the steps have different numbers of messages."""
    job, amounts = context.job, context.job.amounts
    mine = np.isin(amounts.slot, chosen) & (job.process[amounts.arc] == process) & (job.step[amounts.arc] >= 0)
    arc, which = np.unique(amounts.arc[mine], return_inverse=True)
    arc_ns = np.bincount(which, amounts.ns[mine], len(arc)).astype(np.int64)
    step, steps = job.step[arc], np.arange(context.step_count)
    own = job.messages.process_rows[job.process[job.messages.process_rows] == process]
    arrived = np.sort(job.time_ns[job.source[own]])
    first = np.searchsorted(arrived, job.time_ns[job.step_begin[process]])
    counts = np.searchsorted(arrived, job.time_ns[job.step_end[process]]) - first
    k = int(counts[-1]) + 1
    if (counts[context.settled :] != k - 1).any():
        k = 1
    number = np.searchsorted(arrived, job.time_ns[job.target[arc]]) - first[step]
    number = np.clip(number, 0, k - 1)
    again = np.isin(arc, job.repeated)
    ns = np.bincount((step * k + number)[~again], arc_ns[~again].astype(np.float64), len(steps) * k)
    place = np.where(step == steps[:, None], number, k)
    return _Stretches(ns.astype(np.float64).reshape(len(steps), k), arc, arc_ns, place)


def _in_some(steps: NDArray[np.bool_]) -> bool:
    """Whether it is in several steps, and in no more than half of them."""
    return bool(1 < np.count_nonzero(steps) <= _NOT_SOME * len(steps))
