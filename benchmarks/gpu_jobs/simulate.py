"""A training run on the machine: what its ranks do, and how long a step takes."""

from __future__ import annotations

from functools import partial

from .machine import Contention, Loader, Machine
from .pipeline import PipelineRank
from .program import MS, Program, Recording
from .ranks import Rank
from .training import Training


def run(t: Training) -> list[Recording]:
    """What the ranks of a training do."""
    make = PipelineRank if t.kind == "pipeline" else Rank
    programs: list[Program] = [make(t, rank).program() for rank in range(t.ranks)]
    loaders = {
        rank: Loader(partial(t.batch_ns, rank), t.slow_workers if t.has_slow_loads(rank) else t.workers)
        for rank in range(t.ranks)
    }
    contention = {rank: Contention(3 * MS, 3 * MS, t.seed + rank) for rank in t.contended}
    return Machine(programs, loaders=loaders, contention=contention).run()


def run_step_ns(t: Training) -> int:
    """The mean step of a training."""
    return round(mean_step_ns(run(t)))


def mean_step_ns(recordings: list[Recording]) -> float:
    """The mean step without the first one: from one step's last work, on all devices and hosts, to the next step's."""
    done: list[int] = []
    for recording in recordings:
        marks = recording.steps
        calls = {called.number: called.start for called in recording.calls}
        work = sorted((calls[number], work.end) for work, number in recording.work)
        at = reached = 0
        for i, mark in enumerate(marks):
            until = marks[i + 1].start if i + 1 < len(marks) else recording.end
            reached = max(reached, mark.end)
            while at < len(work) and work[at][0] < until:
                reached = max(reached, work[at][1])
                at += 1
            if i == len(done):
                done.append(reached)
            done[i] = max(done[i], reached)
    return (done[-1] - done[0]) / (len(done) - 1)
