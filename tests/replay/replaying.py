"""A made job replayed: its graph, its answer, and the change of the mean step that a simulation says it has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import Compressible, RankPart
from harness.analysis.summary import RankTraining, Replay, Summary, TimeLost, Window
from harness.replay.attribute.diagnosis import diagnose
from harness.replay.graph.process import process_graph
from harness.traces.sampled_lines import SampledLines
from harness.traces.trace import Trace


def parts_of(traces: Sequence[Trace], lines: Sequence[SampledLines] = ()) -> list[RankPart]:
    """The parts of all processes, with their graphs. lines: of each trace, if they were sampled."""
    return [
        part.model_copy(update={"graph": Compressible(process_graph(measured, own))})
        for trace, own in zip_longest(traces, lines)
        for part, measured in measured_processes(trace, Window.STEPS, load_rules())
    ]


def replayed(traces: Sequence[Trace], training: Sequence[RankTraining] = ()) -> tuple[Replay, list[TimeLost]]:
    """The replay of one job, which must have one."""
    found = summary_of(traces, training)
    assert found.replay is not None
    return found.replay, found.findings


def departures(traces: Sequence[Trace], training: Sequence[RankTraining] = ()) -> tuple[Replay, list[TimeLost]]:
    """The replay, and the findings that are no steady losses."""
    replay, lost = replayed(traces, training)
    return replay, [found for found in lost if not found.standing]


def summary_of(
    traces: Sequence[Trace], training: Sequence[RankTraining] = (), lines: Sequence[SampledLines] = ()
) -> Summary:
    """The summary of one job, with its findings."""
    parts = parts_of(traces, lines)
    summary = summarise_job(parts)
    replay, lost = diagnose(summary, parts, training)
    return summary.model_copy(update={"replay": replay, "findings": lost})


def step_with(replay: Replay, name: str) -> int:
    """The step that a what-if gives."""
    return next(what.step_ns for what in replay.what_ifs if what.name == name)
