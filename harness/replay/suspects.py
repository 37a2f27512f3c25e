"""The rules: each looks at a job's time and names what it suspects. A rule is one function; `RULES` names them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.phases import PHASES
from harness.common.metrics_lines import how_many
from harness.replay.network import larger_buckets, small_buckets
from harness.replay.scene import WORK_SORTS, Scene, slots
from harness.replay.sorts import Sort
from harness.replay.suspect import Cause, Suspect, culprits, hit, is_regular
from harness.traces.trace import F64

STALLED = (Sort.HOST_STALL,)
HELD = (Sort.HOST_STALL, Sort.HOST_HELD)
FORWARD, BACKWARD, OPTIMIZER, DATA, _, OTHER = range(len(PHASES))
STALLING = (FORWARD, BACKWARD, OPTIMIZER, OTHER)
CHECKPOINT_BYTES = 100_000  # written per step, of which a training's own lines are a thousandth
LEAST = 0.02  # of a step: less is not looked at
SLOW_DATA = 0.03  # of a step, from which loading data costs time also where no single wait is long
_BY_CHANCE = 3.0  # times what is expected where a process is stopped at any moment
_COMPARABLE = 0.25  # of a phase's stalls, those of another phase
_MOST = 0.5
_UNEVEN = 1.08  # a rank's work over the other ranks', from which it has more
_HEAVIER = 0.15  # a step's work above the median step's, from which it has more
_MUCH_MORE = 1.5  # a stage's forward over the others', from which its layers are not the reason
_WAITING = 0.15  # of a step without a core: less is usual where ranks have few cores for their threads
_RUNNING = (Sort.HOST_WORK, Sort.HOST_PRODUCT, Sort.HOST_GAP)
_LAUNCHING = 0.1  # of a step between operators, from which the operators are called small
_SPREAD = 0.5  # how much the excess of two phases may differ to be called the same


def suspects(scene: Scene) -> list[Suspect]:
    """What every rule suspects."""
    return [found for rule in RULES for found in rule(scene)]


def data(scene: Scene) -> Iterator[Suspect]:
    """The host waits in data loading."""
    sorts: tuple[Sort, ...] = HELD
    if scene.of((Sort.HOST_GAP,), DATA).mean() > SLOW_DATA * scene.step_ns:
        sorts = (Sort.HOST_GAP, Sort.HOST_WORK, *HELD)
    yield from _without(scene, Cause.DATA_STALL, slots(sorts, DATA), DATA)


def host(scene: Scene) -> Iterator[Suspect]:
    """The host stands still in a phase, between operators."""
    own = _own_stalls(scene)
    for phase in STALLING:
        processes = tuple(np.flatnonzero(own[:, phase]).tolist())
        if processes:
            for found in _without(scene, Cause.HOST_STALL, slots(STALLED, phase), phase, processes):
                yield replace(found, cause=_kind_of_stall(scene, found))


def _kind_of_stall(scene: Scene, found: Suspect) -> Cause:
    """What the process's own counters say about a stall: Python's collector ran, or much was written meanwhile."""
    who = list(found.processes)
    stalled = scene.of(STALLED, found.phase).mean(axis=1)[who]
    if (scene.counted("collector_ns")[who] > _MOST * stalled).all():
        return Cause.GARBAGE
    written = scene.counted("written_bytes")[who]
    return Cause.CHECKPOINT if (written > CHECKPOINT_BYTES).all() else Cause.HOST_STALL


def sending(scene: Scene) -> Iterator[Suspect]:
    """A rank's messages start late: it has come to them, and they are not issued."""
    chosen = slots((Sort.HOST_SENDING,))
    yield from _without(scene, Cause.SLOW_LINK, chosen, None)


def stopped(scene: Scene) -> Iterator[Suspect]:
    """Processes stand still anywhere, also inside operators, and not because they have no core."""
    waited = scene.counted("core_wait_ns")
    held = np.array(
        [scene.time_ns[p][:, _held_slots(scene, p)].sum(axis=1).mean() for p in range(scene.processes)]
    )
    processes = tuple(p for p in culprits(held) if waited[p] < _MOST * held[p])
    if processes and held[list(processes)].mean() > LEAST * scene.step_ns:
        yield _taken_out(scene, Cause.PAUSE, None, {p: _held_slots(scene, p) for p in processes})


def _held_slots(scene: Scene, process: int) -> list[int]:
    """Operators that were held up, and stalls that a process stopped at any moment has by chance."""
    own = _own_stalls(scene)[process]
    chance = [slot for phase in STALLING if not own[phase] for slot in slots(STALLED, phase)]
    return [*slots((Sort.HOST_HELD,)), *chance]


def without_core(scene: Scene) -> Iterator[Suspect]:
    """Processes are ready to run and have no core, by the operating system's own count."""
    waited = scene.counted("core_wait_ns")
    processes = tuple(p for p in culprits(waited) if waited[p] > _WAITING * scene.step_ns)
    if not processes:
        return
    factor = scene.job.unchanged()
    for process in processes:
        chosen = [*slots(_RUNNING), *_held_slots(scene, process)]
        mine = float(scene.time_ns[process][:, chosen].sum(axis=1).mean())
        factor[process, chosen] = max(1 - waited[process] / max(mine, 1.0), 0.0)
    each = waited[list(processes)].mean() / 1e6
    yield Suspect(
        _neighbour(scene, processes[0]),
        processes,
        None,
        np.ones(scene.job.measured.shape[1], np.bool_),
        scene.job.scaled(factor),
        f"ready to run and without a core for {each:.1f} ms of each step",
    )


def _neighbour(scene: Scene, process: int) -> Cause:
    """Who had the core: another rank of this job that is bound to the same too few cores, or somebody else."""
    own = scene.recorded(process)
    if own is None or own.cores is None:
        return Cause.NOISY_NEIGHBOUR
    others = (scene.recorded(p) for p in range(scene.processes))
    sharing = [o for o in others if o is not None and o.host == own.host and o.cores == own.cores]
    return Cause.PINNED_TOGETHER if len(sharing) > how_many(own.cores) else Cause.NOISY_NEIGHBOUR


def _own_stalls(scene: Scene) -> NDArray[np.bool_]:
    """Whether a process's stalls in a phase (processes, phases) belong to that phase.

    A process that is stopped at any moment has stalls in every phase, in proportion to the time between operators, and
    none of them at regular steps."""
    held = scene.of((Sort.HOST_HELD,)).sum(axis=1)
    work = scene.of((Sort.HOST_WORK, Sort.HOST_PRODUCT)).sum(axis=1)
    stalls = np.stack([scene.of(STALLED, phase) for phase in range(len(PHASES))], axis=1)
    total = stalls.sum(axis=2)
    own = np.zeros(total.shape, np.bool_)
    for phase in range(len(PHASES)):
        by_chance = held * scene.of((Sort.HOST_GAP,), phase).sum(axis=1) / np.maximum(work, 1)
        own[:, phase] = total[:, phase] > _BY_CHANCE * by_chance
    for process, phase in zip(*np.nonzero(own), strict=True):
        others = max(total[process, other] for other in STALLING if other != phase)
        hits = hit(stalls[process, phase])
        own[process, phase] = is_regular(hits) or others < _COMPARABLE * total[process, phase]
    return own


def uneven(scene: Scene) -> Iterator[Suspect]:
    """One rank has more work than the others, or one stage of a pipeline than the other stages."""
    if scene.processes < 2:
        return
    work = np.stack([scene.of(WORK_SORTS, phase).mean(axis=1) for phase in (FORWARD, BACKWARD)])
    for process in range(scene.processes):
        others = [p for p in range(scene.processes) if p != process]
        own, usual = work[:, process], np.median(work[:, others], axis=1)
        if not usual.all() or own.sum() < _UNEVEN * usual.sum():
            continue
        cause, phase = _kind_of_more(scene, process, others, own / usual)
        factor = scene.job.unchanged()
        for place, ratio in zip((FORWARD, BACKWARD), usual / own, strict=True):
            factor[process, slots(WORK_SORTS, place)] = min(ratio, 1.0)
        yield Suspect(
            cause,
            (process,),
            phase,
            _more_than_usual(scene, process, others),
            scene.job.scaled(factor),
            f"{own.sum() / usual.sum():.2f} times the work of the other {_members(scene)}",
            standing=cause is Cause.UNEVEN_STAGES,
        )


def _members(scene: Scene) -> str:
    return "stages" if _in_pipeline(scene) else "ranks"


def _in_pipeline(scene: Scene) -> bool:
    return any(call.kind == "send" for call in scene.job.calls)


def _kind_of_more(scene: Scene, process: int, others: list[int], ratio: F64) -> tuple[Cause, int | None]:
    """What makes a rank's work larger, by its ratio to the others' in forward and backward.

    More to compute in forward alone is not of the batch, whose backward would be larger too. Where the time between
    operators is larger as well, it is the core that is slower, and not the work that is more."""
    only_forward = ratio[1] - 1 < _SPREAD * (ratio[0] - 1)
    if _in_pipeline(scene):
        extra = only_forward and ratio[0] > _MUCH_MORE
        return (Cause.EXTRA_COMPUTE, FORWARD) if extra else (Cause.UNEVEN_STAGES, None)
    if only_forward:
        return Cause.EXTRA_COMPUTE, FORWARD
    gap = scene.of((Sort.HOST_GAP,)).mean(axis=1)
    slower = gap[process] > _UNEVEN * np.median(gap[others])
    return (Cause.NOISY_NEIGHBOUR if slower else Cause.LONG_SEQUENCES), None


def _more_than_usual(scene: Scene, process: int, others: list[int]) -> NDArray[np.bool_]:
    work = scene.of(WORK_SORTS, FORWARD) + scene.of(WORK_SORTS, BACKWARD)
    more: F64 = work[process] - np.median(work[others], axis=0)
    return hit(np.maximum(more, 0))


def heavier(scene: Scene) -> Iterator[Suspect]:
    """Some steps have more work than the others."""
    for process in range(scene.processes):
        work = scene.of(WORK_SORTS, FORWARD)[process]
        usual = float(np.median(work))
        steps = work > usual + max(_HEAVIER * usual, LEAST * scene.step_ns)
        if not usual or not 1 < np.count_nonzero(steps) <= len(steps) // 2:
            continue
        factor = scene.job.unchanged()
        factor[process, slots(WORK_SORTS, FORWARD)] = usual / work[steps].mean()
        more = (float(work[steps].mean()) - usual) / 1e6
        yield Suspect(
            Cause.EXTRA_COMPUTE,
            (process,),
            FORWARD,
            steps,
            scene.job.scaled(factor, steps),
            f"{more:.1f} ms more in {np.count_nonzero(steps)} of {len(steps)} steps",
        )


def tiny(scene: Scene) -> Iterator[Suspect]:
    """The host needs much time between operators, or between launches."""
    chosen = [s for phase in (FORWARD, BACKWARD, OPTIMIZER) for s in slots((Sort.HOST_GAP,), phase)]
    for found in _without(scene, Cause.TINY_KERNELS, chosen, None):
        between = float(scene.time_ns[:, :, chosen].sum(axis=2).mean())
        if between > _LAUNCHING * scene.step_ns:
            said = f"{between / scene.step_ns:.0%} of a step between operators"
            yield replace(found, evidence=said, standing=True)


def buckets(scene: Scene) -> Iterator[Suspect]:
    """Gradients travel in many small messages."""
    edited, small = larger_buckets(scene), small_buckets(scene)
    if edited is None or small is None:
        return
    everyone, steps = tuple(range(scene.processes)), scene.job.measured.shape[1]
    each, size = np.count_nonzero(small) / scene.job.measured.size, scene.job.messages.bytes[small].mean()
    said = f"{each:.0f} messages of {size / 1e3:.0f} kB in each step"
    yield Suspect(
        Cause.SMALL_BUCKETS, everyone, BACKWARD, np.ones(steps, np.bool_), edited.lengths, said, standing=True
    )


def _without(
    scene: Scene, cause: Cause, chosen: list[int], phase: int | None, processes: tuple[int, ...] | None = None
) -> Iterator[Suspect]:
    """The suspicion that the time in these slots is lost, where there is enough of it."""
    time = scene.time_ns[:, :, chosen].sum(axis=2)
    among = range(scene.processes) if processes is None else processes
    culprit = tuple(p for p in culprits(time.sum(axis=1)) if p in among)
    if culprit and time[list(culprit)].mean() >= LEAST * scene.step_ns:
        yield _taken_out(scene, cause, phase, dict.fromkeys(culprit, chosen))


def _taken_out(scene: Scene, cause: Cause, phase: int | None, chosen: dict[int, list[int]]) -> Suspect:
    """The job without the time in some slots of some processes."""
    factor = scene.job.unchanged()
    for process, of in chosen.items():
        factor[process, of] = 0
    by_step = np.stack([scene.time_ns[p][:, of].sum(axis=1) for p, of in chosen.items()]).max(axis=0)
    steps = hit(by_step)
    each = float(by_step[steps].mean()) / 1e6
    evidence = f"{each:.1f} ms in {int(steps.sum())} of {len(steps)} steps"
    return Suspect(cause, tuple(chosen), phase, steps, scene.job.scaled(factor), evidence)


RULES: tuple[Callable[[Scene], Iterator[Suspect]], ...] = (
    data,
    host,
    sending,
    stopped,
    without_core,
    uneven,
    heavier,
    tiny,
    buckets,
)
