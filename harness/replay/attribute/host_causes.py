"""Causes on the host: it waits for data, in a phase, before a message; it is stopped; it has no core; it is slow.

On a GPU the idle time of the devices is what counts, with what the host did in it (analysis/process/host_activity.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.host_calls import CAUSES as IDLE_CAUSES
from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.process.phases import INFERRED, PHASES, Phase
from harness.analysis.summary import HostActivity
from harness.common.display.format import percent
from harness.common.run_folder.metrics_lines import how_many
from harness.replay.attribute.suspect import Cause, Suspect
from harness.replay.graph.graph import HOST_TIME, NEVER, WORK_TIME, ProcessGraph, TimeCategory, slots
from harness.replay.measure.context import ReplayContext
from harness.replay.measure.hits import LEAST, MOSTLY, hit, in_steps, is_regular, period
from harness.replay.remove.edits import rows_of, without_activities
from harness.traces.vocabulary import OFF_CORE

STALLED = (TimeCategory.HOST_STALL,)
HELD = (TimeCategory.HOST_STALL, TimeCategory.HOST_HELD)
STALLING = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN, Phase.OTHER)
CHECKPOINT_BYTES = 100_000  # written per step, of which a training's own lines are a thousandth
SLOW_DATA = 0.05  # of a step: loading data takes some time in every program
_MOST = 0.5
_COVERS = 0.8  # of a stall, from which Python's collector is its reason: code that makes many objects starts it, too
_WAITING = 0.25  # of a step without a core: less is usual where ranks have few cores for their threads
_LAUNCHING = 0.1  # of a step between operators, from which the operators are called small
_LAUNCHING_ELSEWHERE = 0.05  # the same outside of the model's phases
STEADY = (Cause.TINY_KERNELS, Cause.SYNCHRONISATION, Cause.BLOCKING_COPY, Cause.ALLOCATION, Cause.DATA_STALL)
_RUNNING = (TimeCategory.HOST_WORK, TimeCategory.HOST_PRODUCT, TimeCategory.HOST_GAP)
_COLLECTING = IdleTime.COLLECTOR.label
OF_IDLE_TIME = {
    IdleTime.DATA.label: Cause.DATA_STALL,
    IdleTime.SYNCHRONISATION.label: Cause.SYNCHRONISATION,
    IdleTime.COPY.label: Cause.BLOCKING_COPY,
    IdleTime.ALLOCATION.label: Cause.ALLOCATION,
    IdleTime.FIRST_USE.label: Cause.FIRST_USE,
    IdleTime.CAPTURE.label: Cause.FIRST_USE,
    _COLLECTING: Cause.GARBAGE,
    IdleTime.LAUNCH.label: Cause.TINY_KERNELS,
    IdleTime.HOST.label: Cause.HOST_STALL,
    IdleTime.NOT_RECORDED.label: Cause.HOST_STALL,
}
_ANYWHERE = (Cause.INTERRUPTED, Cause.NOISY_NEIGHBOUR)  # in no single place
_FEW_STEPS = 5  # of fewer it is not known what is at changing places
_PLACES = 3
_NEARLY_ALL = 0.9  # of the steps
STEADY_WAITS = (Cause.SYNCHRONISATION, Cause.ALLOCATION)  # what the host does next costs time because of them
_UNEXPECTED = (IdleTime.HOST.label, IdleTime.NOT_RECORDED.label)
_OF_NO_LENGTH = ("call", "operator", "wait")  # kinds of activities that take no long time by themselves
_SAMPLED = ("sample", "os call", "wait")  # kinds of activities that say where a thread was, not what the program did
ONE_EACH = (Cause.HOST_STALL, Cause.BLOCKING_COPY)  # one finding for each place; of other causes one for all
_ARGUMENTS = re.compile(r"\W*\{['\"].*\}$")  # a program's own, as a dictionary
_PROFILERS = re.compile(
    r"^(?:autograd::engine::evaluate_function: |Optimizer\.\w+#|enumerate\(DataLoader\)#)"
)  # what PyTorch puts before a name


def _culprits(by_process: NDArray[np.int64] | NDArray[np.float64]) -> tuple[int, ...]:
    """The processes with a large part of the largest one's time."""
    return tuple(np.flatnonzero(hit(by_process)).tolist())


def without_time(context: ReplayContext, cause: Cause, chosen: list[int], phase: int | None) -> Iterator[Suspect]:
    """The suspicion that the time in these slots is lost, where there is enough of it."""
    time = context.time_ns[:, :, chosen].sum(axis=2)
    culprit = _culprits(time.sum(axis=1))
    if culprit and time[list(culprit)].mean() >= LEAST * context.step_ns:
        yield counterfactual(context, cause, phase, culprit, chosen)


def counterfactual(
    context: ReplayContext, cause: Cause, phase: int | None, processes: tuple[int, ...], chosen: list[int]
) -> Suspect:
    """The job without the time in some slots of some processes."""
    factor = context.job.unchanged()
    factor[np.ix_(processes, chosen)] = 0
    by_step = context.time_ns[list(processes)][:, :, chosen].sum(axis=2).max(axis=0)
    steps = hit(by_step)
    every = tuple(sorted(chosen))
    said = in_steps(by_step, steps)
    return Suspect(cause, processes, steps, context.job.scaled(factor), said, phase, slots=every, factor=factor)


def data(context: ReplayContext) -> Iterator[Suspect]:
    """The host waits in data loading, also where no single wait is long."""
    if not context.on_cpu:
        return  # told by `activities`
    least = SLOW_DATA * context.step_ns
    categories: tuple[TimeCategory, ...] = HELD
    # of steps that are marked, a stall in loading is told without the usual work of it
    pauses = (TimeCategory.HOST_GAP,) if context.summary.steps.duration else (TimeCategory.HOST_GAP, *HELD)
    if context.of(pauses, Phase.DATA).mean() > least:
        categories = (TimeCategory.HOST_GAP, TimeCategory.HOST_WORK, *HELD)
    if context.of(categories, Phase.DATA).mean(axis=1).max() > least:
        found = without_time(context, Cause.DATA_STALL, slots(categories, Phase.DATA), Phase.DATA)
        for own in found:
            if not _of_stops(context, Phase.DATA)[list(own.processes)].all() and not _is_told(context, own):
                yield own


def host(context: ReplayContext) -> Iterator[Suspect]:
    """The host waits in a phase, between operators."""
    for phase in STALLING if context.on_cpu else ():
        for found in without_time(context, Cause.HOST_STALL, slots(STALLED, phase), phase):
            if not _of_stops(context, phase)[list(found.processes)].all() and not _is_told(context, found):
                yield _named(context, found)


def _is_told(context: ReplayContext, suspect: Suspect) -> bool:
    """Whether the code that its ranks alone run is told of them."""
    lost = context.time_ns[:, :, list(suspect.slots)].sum(axis=2).mean(axis=1)
    return all(context.is_told(process, suspect.slots, float(lost[process])) for process in suspect.processes)


def _named(context: ReplayContext, suspect: Suspect) -> Suspect:
    """The stall with its cause: by what its first rank's host did in most of it, if that was recorded; else by the
    processes' own counters, if Python's collector ran or much was written meanwhile."""
    who, phase = list(suspect.processes), PHASES[suspect.phase or 0]
    stalled, own = context.of(STALLED, suspect.phase), context.job.processes[suspect.processes[0]]
    cause = Cause.HOST_STALL
    if (context.counted("collector_ns")[who] > _COVERS * stalled.mean(axis=1)[who]).all():
        cause = Cause.GARBAGE
    elif (context.counted("written_bytes")[who] > CHECKPOINT_BYTES).all():
        cause = Cause.CHECKPOINT
    for activity, by_step in zip(own.activities, own.activity_ns, strict=True):
        if activity.what and activity.phase == phase and by_step.sum() > _MOST * stalled[who[0]].sum():
            cause = Cause.GARBAGE if activity.cause == _COLLECTING else cause
            return replace(suspect, cause=cause, what=activity_words(activity), where=activity.where)
    return replace(suspect, cause=cause)


def tiny(context: ReplayContext) -> Iterator[Suspect]:
    """The host needs much time between operators: in the model's phases, or in other code with many operators."""
    if not context.on_cpu:
        return  # told by `activities`
    for phases, least in (
        ((Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER), _LAUNCHING),
        ((Phase.OTHER, Phase.BETWEEN), _LAUNCHING_ELSEWHERE),
    ):
        chosen = [s for phase in phases for s in slots((TimeCategory.HOST_GAP,), phase)]
        between = float(context.time_ns[:, :, chosen].sum(axis=2).mean())
        inside = sum(float(context.of(WORK_TIME, phase).mean()) for phase in phases)
        if between <= least * context.step_ns:
            continue
        # other code may be Python that calls few operators; and without lines nobody finds it
        if Phase.FORWARD not in phases and (
            between > inside or not any(own.code_lines for own in context.job.processes)
        ):
            continue
        for found in without_time(
            context, Cause.TINY_KERNELS, chosen, None if Phase.FORWARD in phases else Phase.OTHER
        ):
            said = f"{between / context.step_ns:.0%} of a step between operators"
            yield replace(found, evidence=said, standing=True, profiler_fraction=_profiler_fraction(context, phases))


def _profiler_fraction(context: ReplayContext, phases: tuple[int, ...]) -> float | None:
    """How much of what a profiler adds to a step lies between operators in some phases: it adds about as much to each
    operator, outside of the time that it records for it, so to what calls it: another operator, or Python."""
    operators = sum(device.kernels for device in context.summary.devices)
    called = sum(int(own.called[list(phases)].sum()) for own in context.job.processes)
    return min(called / operators, 1.0) if operators else None


def evaluation(context: ReplayContext) -> Iterator[Suspect]:
    """Forward passes without gradients between the steps, with their data: as much as the program asks for."""
    chosen = [*slots((*HOST_TIME, TimeCategory.WAIT_TAIL), Phase.EVALUATION), *slots((TimeCategory.DEVICE_EVALUATION,))]
    for found in without_time(context, Cause.EVALUATION, chosen, Phase.EVALUATION):
        if _is_told(context, found):
            continue
        lengths = found.lengths
        rows = [at for at in rows_of(context.job, IDLE_CAUSES, (Phase.EVALUATION,)) if at[0] in found.processes]
        if lengths is not None and rows:
            lengths = context.job.least([lengths, without_activities(context.job, rows)])
        own_ns = 0.0
        if len(found.processes) < context.processes:
            own_ns = float(context.time_ns[list(found.processes)][:, :, chosen].sum(axis=2).mean())
        yield replace(found, lengths=lengths, factor=None if rows else found.factor, counted=True, own_ns=own_ns)


def activities(context: ReplayContext) -> Iterator[Suspect]:
    """What the host was doing while a device had no work because of it."""
    if context.on_cpu:
        return  # told by `data`, `host` and `tiny`
    groups: dict[tuple[Cause, object], list[tuple[int, int]]] = {}
    for process, own in enumerate(context.job.processes):
        scattered = _scattered(own, context.step_count)
        without = any(own.activities[row].what == OFF_CORE for row in scattered)
        for row, activity in enumerate(own.activities):
            if activity.phase == Phase.EVALUATION.label:
                continue  # told by `evaluation`
            cause, alike = OF_IDLE_TIME.get(activity.cause), None
            if row in scattered:
                cause = Cause.NOISY_NEIGHBOUR if without else Cause.INTERRUPTED
            elif activity.phase == Phase.BETWEEN.label and (
                activity.cause == IdleTime.NOT_RECORDED.label or activity.kind == "wait"
            ):
                cause = Cause.BETWEEN_STEPS
            elif cause in ONE_EACH:
                alike = activity_place(activity)
            if cause is not None:
                groups.setdefault((cause, alike), []).append((process, row))
    synchronising = groups.pop((Cause.SYNCHRONISATION, None), [])
    for (cause, _), rows in groups.items():
        yield from _of_activities(context, cause, rows)
    yield from _synchronising(context, synchronising)


def activity_place(activity: HostActivity) -> tuple[object, ...]:
    """What the activities of one finding share: a call, whoever makes it; or a place, whatever was sampled there."""
    if activity.kind == "call":
        return activity.what, activity.phase
    where = activity.where
    what = None if activity.range and activity.kind in _SAMPLED else activity.what
    return what, activity.range, where and (where.file, where.function), activity.phase


def _synchronising(context: ReplayContext, windows: list[tuple[int, int]]) -> Iterator[Suspect]:
    """Hosts that wait for their devices in most steps. That also costs the time of what they do next without work
    ahead, though no device was idle in the waiting itself. windows: of activities in which one was."""
    job, own = context.job, context.job.process[context.job.syncs]
    pairs = np.unique(np.stack([own, job.step[job.syncs]]), axis=1)
    steps = np.bincount(pairs[0][pairs[1] >= 0], minlength=context.processes)
    who = tuple(np.flatnonzero(steps >= MOSTLY * context.step_count).tolist())
    if not who or any(process not in who for process, _ in windows):
        yield from _of_activities(context, Cause.SYNCHRONISATION, windows) if windows else ()
        return
    lengths = without_activities(context.job, windows)
    lengths[job.syncs[np.isin(own, who)]] = NEVER
    found = next(_of_activities(context, Cause.SYNCHRONISATION, windows), None) if windows else None
    if found is not None:
        yield replace(found, processes=who, lengths=lengths)
    else:
        yield Suspect(Cause.SYNCHRONISATION, who, context.every_step, lengths, standing=True)


def _scattered(process_graph: ProcessGraph, steps: int) -> set[int]:
    """The rows of a process's activities that are the same interruption at changing places: calls and operators that
    usually take no such time, each in some steps at no regular distance; at several places, or known to have had no
    core. Data loading that is interrupted belongs to it."""
    if steps < _FEW_STEPS:
        return set()
    rare = set()
    for row, hits in enumerate(
        map(hit, process_graph.activity_ns)
    ):  # not in nearly all steps, nor three times at one distance
        at_one_distance = np.count_nonzero(hits) > 2 and period(hits) not in (None, 1)
        if hits.mean() < _NEARLY_ALL and not at_one_distance:
            rare.add(row)
    of = process_graph.activities
    rows = {row for row in rare if of[row].cause in _UNEXPECTED and of[row].kind in _OF_NO_LENGTH}
    places = {(of[row].what, of[row].phase) for row in rows}
    if len(places) < _PLACES and OFF_CORE not in {what for what, _ in places}:
        return set()
    return rows | {row for row in rare if of[row].cause == IdleTime.DATA.label}


def _of_activities(context: ReplayContext, cause: Cause, windows: list[tuple[int, int]]) -> Iterator[Suspect]:
    """The suspicion of the ranks that have most of it."""
    job = context.job
    by_step = np.zeros((context.processes, context.step_count))
    for process, row in windows:
        by_step[process] += job.processes[process].activity_ns[row, : context.step_count]
    who = _culprits(by_step.sum(axis=1))
    saved = by_step[list(who)].sum(axis=0)
    if not who or (saved.mean() < LEAST * context.step_ns and cause not in STEADY_WAITS):
        return
    mine = [(process, row) for process, row in windows if process in who]
    most = max(mine, key=lambda at: job.processes[at[0]].activity_ns[at[1]].sum())
    activity, steps = job.processes[most[0]].activities[most[1]], hit(saved)
    found = Suspect(
        cause,
        who,
        steps,
        without_activities(context.job, mine),
        in_steps(saved / len(who), steps),
        standing=cause in STEADY,
        saved_ns=saved,
        activities=tuple(mine),
    )
    if cause in _ANYWHERE:
        yield found
    else:
        phase = PHASES.index(activity.phase) if activity.phase in PHASES else None
        yield replace(found, phase=phase, what=activity_words(activity), where=activity.where)


def activity_words(activity: HostActivity) -> str | None:
    """The activity in a few words, as "aten::to, inside forward"; None: nothing was recorded but perhaps its phase."""
    names = (activity.what, activity.operator, activity.range)
    named = [*dict.fromkeys(short_name(name) for name in names if name and not name.endswith(INFERRED))]
    if not activity.what or not named:
        return None
    what, *around = named
    inner, ns = activity.innermost, activity.innermost_ns or 0
    if inner is not None and ns >= _MOST * activity.idle_ns and inner.function not in activity.what:
        place = f" ({inner.file})" if inner.file else ""
        what += f", {percent(ns / activity.idle_ns)} of it in {inner.function}{place}"
    return ", ".join([what, *(f"inside {name}" for name in around)])


def short_name(recorded: str) -> str:
    """A recorded name without what the profiler puts around it.

    >>> short_name("Optimizer.step#SGD.step"), short_name("## sparse_data_dist ##")
    ('SGD.step', 'sparse_data_dist')
    >>> short_name("autograd::engine::evaluate_function: AddmmBackward0"), short_name("load_layer_#_weights")
    ('AddmmBackward0', 'load_layer_#_weights')
    >>> short_name("forward: {'batch': 7}")
    'forward'
    """
    return _ARGUMENTS.sub("", _PROFILERS.sub("", recorded.strip("# ")))


def sending(context: ReplayContext) -> Iterator[Suspect]:
    """A rank's messages start late: it has come to them, and they are not issued."""
    return without_time(context, Cause.SLOW_LINK, slots((TimeCategory.HOST_SENDING,)), None)


def stopped(context: ReplayContext) -> Iterator[Suspect]:
    """Processes fall behind anywhere, also inside operators, and do not only wait for a core by their own count. That
    they were stopped is said only of those that counted it."""
    held, waited = context.of((TimeCategory.HOST_HELD,)).mean(axis=1), context.counted("core_wait_ns")
    continued = context.counted("continued")
    if continued.any():
        yield from _continued(context, tuple(np.flatnonzero(continued > _MOST * continued.max()).tolist()))
        return
    if not context.on_cpu:
        return  # told by `activities`
    processes = tuple(p for p in _culprits(held) if waited[p] < _MOST * held[p])
    if processes and held[list(processes)].mean() > LEAST * context.step_ns:
        yield counterfactual(context, Cause.INTERRUPTED, None, processes, slots((TimeCategory.HOST_HELD,)))


def _of_stops(context: ReplayContext, phase: int) -> NDArray[np.bool_]:
    """Which processes counted stops and wait in a phase at no regular steps: there, too, they were stopped."""
    irregular = [not is_regular(hit(by_step)) for by_step in context.of(HELD, phase)]
    return np.array(irregular) & (context.counted("continued") > 0)


def _continued(context: ReplayContext, processes: tuple[int, ...]) -> Iterator[Suspect]:
    """Processes that were stopped and continued, by their own count. They hold up their own operators and all ranks'
    messages; what was held up for less than half a usual stop was so for another reason."""
    job, count = context.job, int(context.counted("continued")[list(processes)].max())
    amounts = job.amounts
    held = np.isin(amounts.slot, slots((TimeCategory.HOST_HELD,))) & np.isin(job.process[amounts.arc], processes)
    for phase in (Phase.DATA, *STALLING):
        own = np.flatnonzero(_of_stops(context, phase))
        held |= np.isin(amounts.slot, slots(STALLED, phase)) & np.isin(job.process[amounts.arc], own)
    held |= np.isin(amounts.slot, slots((TimeCategory.TRANSFER_HELD, TimeCategory.WAIT_HELD)))
    by_arc = np.bincount(amounts.arc[held], amounts.ns[held], job.arcs)
    step = job.step
    longest = np.zeros(job.measured.shape[1])
    np.maximum.at(longest, step[step >= 0], by_arc[step >= 0])
    recorded = context.recorded(processes[0])
    share = min(count / max(recorded.steps_counted if recorded else 0, count, 1), 1.0)
    usual = float(np.median(np.sort(longest)[::-1][: max(round(share * len(longest)), 1)]))
    less = np.where(by_arc >= _MOST * usual, by_arc, 0)
    hits = longest >= _MOST * usual
    if usual < LEAST * context.step_ns:
        return
    yield Suspect(
        Cause.PAUSE,
        processes,
        hits,
        job.lengths - np.rint(less).astype(np.int64),
        f"{usual / 1e6:.1f} ms in {np.count_nonzero(hits)} of {len(hits)} steps; continued {count} times",
        counted=True,
    )


def without_core(context: ReplayContext) -> Iterator[Suspect]:
    """Processes are ready to run and have no core, by the operating system's own count."""
    waited = context.counted("core_wait_ns")
    processes = tuple(p for p in _culprits(waited) if waited[p] > _WAITING * context.step_ns)
    if not processes:
        return
    factor = context.job.unchanged()
    chosen = slots((*_RUNNING, TimeCategory.HOST_HELD))
    for process in processes:
        mine = float(context.time_ns[process][:, chosen].sum(axis=1).mean())
        factor[process, chosen] = max(1 - waited[process] / max(mine, 1.0), 0.0)
    each = waited[list(processes)].mean() / 1e6
    # who had the core: another rank of this job that is bound to the same too few cores, or somebody else
    own, cause = context.recorded(processes[0]), Cause.NOISY_NEIGHBOUR
    if own is not None and own.cores is not None:
        others = (context.recorded(p) for p in range(context.processes))
        sharing = sum(o is not None and (o.host, o.cores) == (own.host, own.cores) for o in others)
        cause = Cause.PINNED_TOGETHER if sharing > how_many(own.cores) else cause
    said = f"ready to run without a free core for {each:.1f} ms of each step"
    yield Suspect(cause, processes, context.every_step, context.job.scaled(factor), said)
