"""A made job replayed: its graph, its answer, and the change of the mean step that a simulation says it has."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.process.kinds import load_rules
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import RankPart
from harness.analysis.summary import RankTraining, Replay, TimeLost, Window
from harness.replay.diagnosis import replay_job
from harness.replay.process import pack_graph, process_graph
from harness.traces.trace import Trace


def parts_of(traces: Sequence[Trace]) -> list[RankPart]:
    """The parts of all processes, with their graphs."""
    return [
        part.model_copy(update={"graph": pack_graph(process_graph(measured))})
        for trace in traces
        for part, measured in measured_processes(trace, Window.STEPS, load_rules())
    ]


def replayed(traces: Sequence[Trace], training: Sequence[RankTraining] = ()) -> tuple[Replay, list[TimeLost]]:
    """The replay of one job, which must have one."""
    replay, lost = replay_job(parts_of(traces), training=training)
    assert replay is not None
    return replay, lost


def step_with(replay: Replay, name: str) -> int:
    """The step that a what-if gives."""
    return next(what.step_ns for what in replay.what_ifs if what.name == name)
