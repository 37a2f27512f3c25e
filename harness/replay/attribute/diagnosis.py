"""A job replayed: how well, what its causes cost and at which lines, what changes would bring. The one way in for other
rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harness.analysis.peers import of_peers
from harness.analysis.process.part import RankPart
from harness.analysis.process.phases import PHASES, Phase
from harness.analysis.summary import RankTraining, Replay, Summary, TimeLost, WhatIf
from harness.analysis.summary.problem_texts import NO_KERNEL
from harness.replay.attribute.causes import CAUSES, suspects
from harness.replay.attribute.line_shares import joined_stalls, line_shares
from harness.replay.attribute.suspect import Cause, Suspect, without_all
from harness.replay.attribute.what_ifs import WHAT_IFS, WhatIfKind
from harness.replay.graph.collectives import EARLY, WAITED_NS
from harness.replay.graph.graph import DEVICE_COMPUTES, WORK_TIME, JobGraph, NoOrderError, TimeCategory, graph_of, slots
from harness.replay.graph.job import join_job
from harness.replay.measure.context import ReplayContext
from harness.replay.remove.edits import EditedLengths, ideal
from harness.replay.remove.gain import NORMAL, Gain, gains, work_left
from harness.traces.python_functions import Owner, owner_of

BUSY = 0.95  # of a device's time: the host costs it nothing
MOST_ERROR = 0.02  # of the step, above which nothing is answered
NOTICEABLE = 0.03  # of the step; a smaller loss is not told
IRREGULAR = 0.08  # of the step, for a loss that comes in few steps and at no regular distance
CROWDED = 0.1  # of the step without a core, from which others hide what a rank loses
BETWEEN_RUNS = 0.05  # of the step: by how much two runs differ on CPUs beyond their steps' noise (diagnosis.md)
_HALF = 0.5  # of a step, at least, in which a busy machine's ranks count as running
WORTH = 0.005  # of the step; a smaller change is not listed


def diagnose(
    summary: Summary, parts: Sequence[RankPart], training: Sequence[RankTraining] = ()
) -> tuple[Replay | None, list[TimeLost]]:
    """The replay of one job and its findings, the largest loss first. Without a replay (the parts have no graphs, or it
    differs from the job) findings are shares of the devices' time. summary: the job's numbers."""
    summary, _ = of_peers(summary)
    graphs = [graph for part in parts if (graph := graph_of(part)) is not None]
    for early in (EARLY, 0.0):  # where waiting goes round in a circle, fewer records are believed
        job = join_job(graphs, parts, summary.world_size, early)
        if job is None:
            break
        try:
            return _answer(ReplayContext(job, summary, {own.rank: own for own in training}, parts))
        except NoOrderError:
            continue
    return None, by_share(summary)


def by_share(s: Summary) -> list[TimeLost]:
    """Findings as shares of the devices' time, the largest first."""
    if any(problem.what == NO_KERNEL for problem in s.quality.problems):
        return []
    step = s.steps.duration
    window = sum(d.window_ns for d in s.devices) / max(len(s.devices), 1)
    whole = step.median_ns if step else window
    shares = {name: entry.share(s) or 0.0 for name, entry in CAUSES.items() if entry.share}
    found = [(name, share) for name, share in shares.items() if share >= NOTICEABLE]
    return [
        TimeLost(
            cause=name,
            ranks=list(s.ranks),
            lost_ns=round(share * whole),
            share=share,
            standing=True,
            basis="share",
            evidence=f"{share:.1%} of the devices' time",
        )
        for name, share in sorted(found, key=lambda pair: -pair[1])
    ]


def _answer(context: ReplayContext) -> tuple[Replay, list[TimeLost]]:
    job = context.job
    again = float(job.replay(job.lengths[None, :]).mean())
    error = abs(again - context.step_ns) / context.step_ns
    replayed = Replay(
        steps=job.step_begin.shape[1],
        processes=context.processes,
        step_ns=round(context.step_ns),
        replayed_ns=round(again),
        error=error,
        model_work_ns=_model_work(context),
        alone=job.alone,
        unknown_ns=_unknown_ns(job),
    )
    suspected = joined_stalls(context, suspects(context))
    if error > MOST_ERROR:
        return replayed, _at_lines(context, suspected, by_share(context.summary))
    kinds = [(kind, edited) for kind in WHAT_IFS if (edited := kind.edit(context)) is not None]
    edits = [
        EditedLengths(ideal(context.job)),
        *(EditedLengths(job.lengths if s.lengths is None else s.lengths) for s in suspected),
        *(edited for _, edited in kinds),
    ]
    free, *rest = gains(context, edits)
    found = list(zip(suspected, map(partial(_limited, context), suspected, rest), strict=False))
    noticed = [s for s, g in found if _stands_out(context, s, g)]
    beyond = [(s, _gain_beyond(context, s, noticed) or g) for s, g in found]
    told = [(s, g) for s, g in beyond if _stands_out(context, s, g)]
    lost = [_told(context, s, g) for s, g in told]
    promised = [
        _what_if(context, kind, edited, gain)
        for (kind, edited), gain in zip(kinds, rest[len(suspected) :], strict=True)
    ]
    what_ifs = [what_if for what_if in promised if what_if.gain > WORTH]
    found_too = {
        "ideal_network_ns": round(context.step_ns - free.mean_ns),
        "unexplained_ns": round(context.step_ns - _together(context, told)),
        "what_ifs": sorted(what_ifs, key=lambda w: w.step_ns),
    }
    return replayed.model_copy(update=found_too), sorted(lost, key=lambda found: -found.lost_ns)


def _limited(context: ReplayContext, suspect: Suspect, gain: Gain) -> Gain:
    """The gain, at most what the devices' time allows; what no change of arcs shows is given as it is."""
    if suspect.lengths is None and suspect.saved_ns is not None:
        saved = suspect.saved_ns[-len(gain.before) :]
        gain = Gain(gain.before, np.maximum(gain.before - saved, 0))
    gain = gain.at_most(_limit_ns(context, suspect))
    if suspect.lengths is None or context.on_cpu:
        return gain
    changes = _changes_work(context, suspect)
    left_ns = work_left(context, EditedLengths(suspect.lengths), suspect.lengths, operators=False, moves_work=changes)
    return gain.at_most(context.step_ns - left_ns)


def _changes_work(context: ReplayContext, suspect: Suspect) -> bool:
    """Whether a cause is more work of the devices, or on a CPU may lie inside of operators, or consists of some."""
    entry = CAUSES[suspect.cause]
    if entry.of_host:
        return context.on_cpu and (entry.on_gpus or bool({*suspect.slots} & {*slots(WORK_TIME)}))
    return not entry.of_messages and suspect.cause is not Cause.COPIES


def _limit_ns(context: ReplayContext, suspect: Suspect) -> float:
    """What a step can lose by it at most: a host costs only as much as the devices of its ranks had no work, whatever
    they then waited for. On a CPU the work that is a part of the loss counts, too."""
    entry = CAUSES[suspect.cause]
    most = context.step_ns
    if suspect.saved_ns is not None and not (entry.of_host and suspect.lengths is not None):
        most = min(most, float(suspect.saved_ns[context.settled :].mean()))
    if not entry.of_host or (entry.on_gpus and context.on_cpu):
        return most
    who = list(suspect.processes)
    idle_ns, window_ns = (context.device_time[name][who].mean(axis=1) for name in ("idle_ns", "window_ns"))
    work = sorted({*slots(WORK_TIME)} & {*suspect.slots}) if context.on_cpu else []
    lost_work_ns = context.time_ns[who][:, :, work].sum(axis=2).mean(axis=1)
    if not np.isfinite(idle_ns).all() or (idle_ns + lost_work_ns <= (1 - BUSY) * window_ns).all():
        return 0.0
    return min(most, float((idle_ns + lost_work_ns).sum()))


def _gain_beyond(context: ReplayContext, suspect: Suspect, noticed: list[Suspect]) -> Gain | None:
    """What a general cause costs beyond the specific ones that are a part of it: more work of a rank also holds its
    operators up, and small buckets are exposed communication. None where it is no general cause, or none of its
    specific ones was noticed."""
    of_it = CAUSES[suspect.cause].beyond
    if of_it is None or suspect.lengths is None:
        return None
    departures = [o for o in noticed if not o.standing and CAUSES[o.cause].beyond is None]
    parts = [o for o in noticed if o.cause in of_it] if of_it else departures
    specific = [other.lengths for other in parts if other.lengths is not None]
    if not specific:
        return None
    least, with_it = context.job.least(specific), context.job.least([*specific, suspect.lengths])
    without, both = gains(context, [EditedLengths(least), EditedLengths(with_it)])
    return _limited(context, suspect, Gain(without.after, both.after))


def _together(context: ReplayContext, explained: list[tuple[Suspect, Gain]]) -> float:
    """What a step gains without all of these, in nanoseconds: at most what it gains without each, and what leaves the
    devices' work."""
    lengths = without_all(context.job, [suspect for suspect, _ in explained])
    others = sum(gain.mean_ns for suspect, gain in explained if suspect.lengths is None)
    most = sum(gain.mean_ns for _, gain in explained)
    if lengths is None:
        return min(others, most)
    gain, changes = (
        gains(context, [EditedLengths(lengths)])[0].mean_ns,
        any(_changes_work(context, own) for own, _ in explained),
    )
    left_ns = 0.0
    if not context.on_cpu:
        left_ns = work_left(context, EditedLengths(lengths), lengths, operators=False, moves_work=changes)
    return min(gain + others, most, max(context.step_ns - left_ns, 0.0))


def _model_work(context: ReplayContext) -> int | None:
    """Median over steps, mean over ranks; None without such work."""
    work = context.of(DEVICE_COMPUTES)
    if not work.any():
        operators = (TimeCategory.HOST_WORK, TimeCategory.HOST_PRODUCT)
        work = context.of(operators, Phase.FORWARD) + context.of(operators, Phase.BACKWARD)
    return round(float(np.median(work.mean(axis=0)))) or None


def _unknown_ns(job_graph: JobGraph) -> int:
    """Collectives with ranks that are not known, where they are long enough to be waited in: per step, of the rank with
    the most."""
    inside = job_graph.unknown[job_graph.step[job_graph.unknown] >= 0]
    ns = job_graph.lengths[inside]
    by_process = np.bincount(job_graph.process[inside], np.where(ns >= WAITED_NS, ns, 0), len(job_graph.processes))
    return int(by_process.max() / job_graph.step_begin.shape[1])


def _apart(suspect: Suspect) -> NDArray[np.bool_] | None:
    return suspect.steps if suspect.every is not None or suspect.counted else None


def _stands_out(context: ReplayContext, suspect: Suspect, gain: Gain) -> bool:
    """Whether a loss is more than chance: its interval is above 0, and what hits few steps, at no regular distance, is
    large, or seen. Where cores are missing, what only some ranks do is told although others hide it, if it is large."""
    if _lacks_cores(context) and suspect.own_ns >= IRREGULAR * _with_cores_ns(context) and gain.mean_ns > 0:
        return suspect.is_regular or suspect.counted
    interval = gain.interval(_apart(suspect))
    share = gain.mean_ns / (_with_cores_ns(context) if suspect.alone else context.step_ns)
    least = NOTICEABLE if suspect.counted or suspect.is_regular else IRREGULAR
    # a device was seen without work because of it: a long wait in a single step is no noise of the steps
    seen = suspect.saved_ns is not None and CAUSES[suspect.cause].of_host and not context.on_cpu
    return (interval is None or interval[0] > 0 or seen) and share >= least


def _lacks_cores(context: ReplayContext) -> bool:
    return float(context.counted("core_wait_ns").max()) >= CROWDED * context.step_ns


def _with_cores_ns(context: ReplayContext) -> float:
    """A step without the time in which every rank waits for a core: that code runs on one rank only is as certain on a
    busy machine, whose steps are longer."""
    waited = float(context.counted("core_wait_ns").min())
    return max(context.step_ns - waited, _HALF * context.step_ns)


def _what_if(context: ReplayContext, kind: WhatIfKind, edited: EditedLengths, gain: Gain) -> WhatIf:
    left = partial(work_left, context, edited, operators=kind.operators)
    gain = gain.at_most(context.step_ns - left(edited.lengths))
    step_ns, margin, on_cpu = context.step_ns - gain.mean_ns, gain.margin(), context.on_cpu
    at_most = kind.more_on_cpus and on_cpu
    low_ns, least_ns = step_ns, min(left(edited.lengths if edited.best is None else edited.best), step_ns)
    if gain.best is not None:
        low_ns = context.step_ns - float((gain.before - gain.best).mean())
        margin = margin or 0.0
    if margin is not None and on_cpu:
        margin = float(np.hypot(margin, NORMAL * BETWEEN_RUNS * step_ns))
    return WhatIf(
        name=kind.name,
        meaning=edited.meaning or kind.meaning,
        step_ns=round(step_ns),
        low_ns=None if margin is None or at_most else round(max(low_ns - margin, least_ns)),
        high_ns=None if margin is None or kind.bound else round(step_ns + margin),
        gain=gain.mean_ns / context.step_ns,
        bound=kind.bound,
        at_most=at_most,
        ranged=gain.best is not None,
        same_work=kind.same_work,
        per=edited.per,
    )


def _told(context: ReplayContext, suspect: Suspect, gain: Gain) -> TimeLost:
    interval = gain.interval(_apart(suspect))
    lines, hits = line_shares(context, suspect), np.flatnonzero(suspect.steps)
    first = context.job.processes[suspect.processes[0]]
    is_own = suspect.where is not None and owner_of(suspect.where.file) is Owner.USER
    return TimeLost(
        cause=suspect.cause.value,
        ranks=[context.job.processes[p].rank for p in suspect.processes],
        phase=None if suspect.phase is None else PHASES[suspect.phase],
        every=suspect.every,
        lost_ns=round(gain.mean_ns),
        low_ns=None if interval is None else round(max(interval[0], 0)),
        high_ns=None if interval is None else round(min(interval[1], context.step_ns)),
        share=gain.mean_ns / context.step_ns,
        standing=suspect.standing,
        what=suspect.what,
        where=suspect.where if is_own or not lines else lines[0].where,
        lines=lines,
        evidence=suspect.evidence,
        alone=suspect.own_ns > 0,
        profiler_fraction=suspect.profiler_fraction,
        # the beginning of the first step that it hits, on the clock of the first process that does it
        at_ns=int(first.time_ns[first.step_begin[hits[0]]]) if len(hits) else None,
        at_rank=first.rank if len(hits) else None,
    )


def _at_lines(context: ReplayContext, suspected: Sequence[Suspect], losses: Sequence[TimeLost]) -> list[TimeLost]:
    """Findings as shares, each with the lines of the first suspicion of its cause."""
    of_cause = {suspect.cause.value: suspect for suspect in reversed(suspected)}
    lines = {own.cause: line_shares(context, of_cause[own.cause]) for own in losses if own.cause in of_cause}
    where = {cause: {"lines": shares, "where": shares[0].where} for cause, shares in lines.items() if shares}
    return [own.model_copy(update=where.get(own.cause, {})) for own in losses]
