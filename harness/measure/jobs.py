"""Parts of processes to Summaries, one per job, with the other contents of the runs' directories. Opens no trace.
Before a mystery is revealed, its Summary has no causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import hypot
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.job.grouping import group
from harness.analysis.job.pop import with_ideal_network
from harness.analysis.job.summarise import summarise_job
from harness.analysis.metrics import OF_PROFILER, SLOWED
from harness.analysis.process.part import RankPart, with_rank
from harness.analysis.summary import Problem, ProfilerCost, RankTraining, Summary, TimeLost, Withheld
from harness.common.display.format import percent
from harness.common.errors import WorkError
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.diagnosis import BETWEEN_RUNS, NOTICEABLE, diagnose
from harness.replay.attribute.suspect import Cause
from harness.replay.remove.gain import NORMAL

if TYPE_CHECKING:
    from harness.measure.run_contents import RunContents

WITHHELD = ("findings", "replay.what_ifs", "job_time")
REASON = "this run is a mystery: find the cause yourself, or end it with `lesson mystery reveal`"
MOST_REPLAYED = 1024  # ranks of a job
NOT_REPLAYED = f"a job of more than {MOST_REPLAYED} ranks is not replayed"
NO_TRACE = "no trace was found: give a run, a trace file or a folder of them"


def without_diagnosis(summary: Summary, run: Path) -> Summary:
    """The summary without what tells the cause, where `run` is a mystery that was not revealed."""
    from harness.experiment.exercises import experiment_of
    from harness.run.mystery import is_hidden

    if not is_hidden(run, experiment_of(summary.experiment)):
        return summary
    replay = summary.replay and summary.replay.model_copy(update={"what_ifs": []})
    return withholding(summary, WITHHELD, REASON).model_copy(
        update={"findings": [], "replay": replay, "job_time": None}
    )


def withholding(summary: Summary, fields: Sequence[str], reason: str) -> Summary:
    """The summary that says why it does not have these fields."""
    quality = summary.quality
    withheld = [*quality.withheld, *(Withheld(field=field, reason=reason) for field in fields)]
    return summary.model_copy(update={"quality": quality.model_copy(update={"withheld": withheld})})


def carried(summary: Summary) -> Summary:
    """The summary without the causes and predictions that its kind of recording cannot carry."""
    withheld = {one.field for one in summary.quality.withheld}
    found, replay = summary.findings, summary.replay
    if "findings" in withheld:
        found = []
    elif "findings.host" in withheld:
        found = [one for one in found if not CAUSES[one.cause].of_host]
    if "replay.what_ifs" in withheld and replay is not None:
        replay = replay.model_copy(update={"what_ifs": [], "ideal_network_ns": None})
    return summary.model_copy(update={"findings": found, "replay": replay})


def without_profiler(summary: Summary) -> Summary:
    """The summary with its losses without the profiler's cost, where the steps outside of the window are known."""
    found = corrected(summary.findings, summary.profiler_cost)
    if len(found) < len(summary.findings):
        reason = (
            f"without what the profiler adds, the time between operators may be below {percent(NOTICEABLE)} of a step"
        )
        summary = withholding(summary, [OF_PROFILER], reason)
    return summary.model_copy(update={"findings": found})


def corrected(losses: Iterable[TimeLost], cost: ProfilerCost | None) -> list[TimeLost]:
    """The losses, the largest first, with those to small operators without what the profiler adds to a step; without
    those that the profiler alone explains.

    The profiler adds time to each operator and each call, so while small operators are launched. A stall, a wait or a
    pause holds few of them. A device has no more work than without it, so all that is added is time between kernels. On
    CPUs it is also inside of operators that call others: the loss has its part (`TimeLost.profiler_fraction`).
    """
    if cost is None:
        return [*losses]
    added_ns = max(cost.profiled_step_ns - cost.unprofiled_step_ns, 0)
    margin_ns = NORMAL * BETWEEN_RUNS * cost.unprofiled_step_ns
    is_slowed = cost.ratio > SLOWED
    less = [
        _without(one, added_ns, margin_ns)
        if one.cause == Cause.TINY_KERNELS and (is_slowed or one.profiler_fraction is not None)
        else one
        for one in losses
    ]
    kept = [one for one in less if one.recorded_lost_ns is None or one.share >= NOTICEABLE]
    return sorted(kept, key=lambda one: -one.lost_ns)


def _without(time_lost: TimeLost, every_ns: int, margin_ns: float) -> TimeLost:
    """Without its part of what the profiler adds. every_ns: all of it; margin_ns: how well that is known on CPUs."""
    part = time_lost.profiler_fraction
    added_ns, margin_ns = (every_ns, 0.0) if part is None else (round(every_ns * part), margin_ns * part)
    lost_ns = time_lost.lost_ns - added_ns
    update = {
        "lost_ns": lost_ns,
        "share": time_lost.share * lost_ns / time_lost.lost_ns,
        "recorded_lost_ns": time_lost.lost_ns,
    }
    if time_lost.low_ns is not None and time_lost.high_ns is not None:
        update["low_ns"] = max(0, round(lost_ns - hypot(time_lost.lost_ns - time_lost.low_ns, margin_ns)))
        update["high_ns"] = max(0, round(lost_ns + hypot(time_lost.high_ns - time_lost.lost_ns, margin_ns)))
    return time_lost.model_copy(update=update)


def summarise(
    parts: Iterable[RankPart], broken: Sequence[Problem] = (), run_folders: Sequence[Path] = ()
) -> list[Summary]:
    """Parts to summaries, one per job, with the other contents of the runs' directories.

    Raises WorkError: there is neither a part nor a run.
    """
    parts = list(parts)
    beside = contents_of([*map(str, run_folders), *(p.run for p in parts if p.run)])
    ranked = [name_rank(part, beside[part.run].training) if part.run else part for part in parts]
    jobs = [(job[0].run, _one_job(job, beside.get(job[0].run or ""))) for job in group(ranked)]
    return completed(jobs, beside, broken)


def contents_of(runs: Iterable[str]) -> dict[str, RunContents]:
    """What each run's directory holds besides its traces."""
    runs = set(runs)
    if not runs:  # traces from elsewhere are measured without what reads a run
        return {}
    from harness.measure.run_contents import read_contents

    return {run: read_contents(Path(run)) for run in runs}


def completed(
    jobs: Sequence[tuple[str | None, Summary]], beside: Mapping[str, RunContents], broken: Sequence[Problem]
) -> list[Summary]:
    """The summaries of jobs, each with its run or None, with the contents of the runs' directories; a run without any
    trace still has its training's numbers.

    Raises WorkError: there is neither a job nor a run.
    """
    traced = {run for run, _ in jobs}
    every = [*jobs, *((run, Summary()) for run in sorted(beside) if run not in traced)]
    if not every:
        raise WorkError("; ".join(f.evidence for f in broken) or NO_TRACE)
    complete = [summary if run is None else _of_run(summary, beside[run], Path(run)) for run, summary in every]
    return [summary.with_problems(broken) for summary in complete]


def _of_run(summary: Summary, contents: RunContents, run: Path) -> Summary:
    """The summary with what the run's directory adds."""
    from harness.measure.run_contents import with_contents

    return without_diagnosis(without_profiler(with_contents(summary, contents)), run)


def _one_job(parts: Sequence[RankPart], beside: RunContents | None) -> Summary:
    """The summary of one job with its replay. beside: what its run's directory holds."""
    summary = summarise_job(parts, beside.world_size, beside.switches) if beside else summarise_job(parts)
    if len(parts) > MOST_REPLAYED:
        return withholding(summary, ["replay"], NOT_REPLAYED)
    replayed, lost = diagnose(summary, parts, beside.training if beside else [])
    pop = summary.pop
    if pop is not None and replayed is not None and replayed.ideal_network_ns is not None:
        ideal = round(pop.elapsed_ns * replayed.ideal_network_ns / replayed.step_ns)
        pop = with_ideal_network(pop, ideal)
    return carried(summary.model_copy(update={"replay": replayed, "findings": lost, "pop": pop}))


def name_rank(part: RankPart, training: Sequence[RankTraining]) -> RankPart:
    """The part with the rank that the training recorded for its process, where the trace does not record a rank."""
    rank = rank_by_training(part.source.pid, part.source.host, training)
    if part.source.rank is not None or rank is None:
        return part
    return with_rank(part, rank)


def rank_by_training(pid: int | None, host: str | None, training: Sequence[RankTraining]) -> int | None:
    """The rank that the training recorded for a process; None without such a record, or with several."""
    found = [t.rank for t in training if t.pid == pid and (host is None or t.host in (None, host))]
    return found[0] if pid is not None and len(found) == 1 else None
