"""At which line of the user's code a loss is, in simulated jobs whose main threads are looked at every 5 ms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.process.part import compressed
from harness.analysis.process.phases import Phase
from harness.analysis.summary import LineShare, RankTraining, TimeLost
from harness.replay.graph.builder import HostSegments
from harness.replay.graph.graph import N_PHASES, LineTimes, TimeCategory, graph_of
from harness.replay.graph.lines import HostSteps
from harness.replay.graph.process import _called
from harness.replay.measure.context import own_code
from harness.traces.sampled_lines import CodeLine, SampledLines
from harness.traces.trace import Activity, Trace
from tests.replay.replaying import parts_of, summary_of
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob

COSTS = Costs(steps=8, operators=20, operator_ns=MS // 2, messages=2, transfer_ns=3 * MS)
PERIOD_NS = 5 * MS
ONE_NS = COSTS.operator_ns + COSTS.gap_ns  # an operator and the gap after it
STALL, DATA, FORWARD, BACKWARD, OPTIMIZER, LOOP, SYNC = range(10, 17)
PHASES = {"DataLoad batch": DATA, "forward": FORWARD, "backward": BACKWARD, "optimizer_step": OPTIMIZER}
LineAt = Callable[[int], int]


def sampled(trace: Trace, line_at: LineAt, offset_ns: int = 0) -> SampledLines:
    """What a sampler sees of a thread that is in line `line_at(moment)`."""
    first = int(min(trace.ranges.start_ns.min(), trace.calls.start_ns.min(initial=1 << 62)))
    last = int(max(trace.ranges.end_ns.max(), trace.events.end_ns.max()))
    looks = np.arange(first + offset_ns, last, PERIOD_NS)
    lines = np.array([line_at(int(look)) for look in looks])
    changed = np.flatnonzero(np.diff(lines, prepend=-1))
    places = [CodeLine("/home/me/train.py", line, "train", (f"line {line}",), line) for line in range(10, 20)]
    return SampledLines(
        after_ns=looks[changed] - PERIOD_NS,
        seen_ns=looks[changed],
        line_number=(lines[changed] - 10).astype(np.int32),
        places=places,
        until_ns=last,
        period_ns=PERIOD_NS,
    )


Spans = Sequence[tuple[int, int, int]]
"""From when to when the thread is in a line of its own."""


def of_phases(trace: Trace, spans: Spans = ()) -> LineAt:
    """The line of the phase in which a moment is, or of a span."""
    of_ranges = [
        (int(a), int(b), PHASES[trace.names[name]])
        for a, b, name in zip(trace.ranges.start_ns, trace.ranges.end_ns, trace.ranges.name, strict=True)
        if trace.names[name] in PHASES
    ]

    def line_at(moment: int) -> int:
        return next((line for a, b, line in [*spans, *of_ranges] if a <= moment < b), LOOP)

    return line_at


def begins(trace: Trace, name: str) -> list[int]:
    """When ranges of this name begin, those of backward once per step."""
    chosen = [trace.names[n] == name for n in trace.ranges.name]
    return [int(x) for x in np.sort(trace.ranges.start_ns[chosen])]


def ends_of_forward(trace: Trace) -> list[int]:
    chosen = [trace.names[n] == "forward" for n in trace.ranges.name]
    return [int(x) for x in np.sort(trace.ranges.end_ns[chosen])]


def found_in(job: CpuJob, *spans: Spans, waits: Sequence[RankTraining] = ()) -> list[TimeLost]:
    """The findings; spans: of each rank, as far as it has some."""
    every: list[Spans] = [*spans, *[()] * (job.costs.ranks - len(spans))]
    lines = [
        sampled(trace, of_phases(trace, own), rank * MS)
        for rank, (trace, own) in enumerate(zip(job.traces(), every, strict=True))
    ]
    return summary_of(job.traces(), waits, lines).findings


def stalled(job: CpuJob, ranks: Sequence[int], phases: dict[str, int], ns: int = 12 * MS) -> list[Spans]:
    """The spans in which ranks stand still at the begin of phases; of each phase its line."""
    return [
        [(x, x + ns, line) for phase, line in phases.items() for x in begins(trace, phase) if rank in ranks]
        for rank, trace in enumerate(job.traces())
    ]


def everywhere(ranks: Sequence[int], ns: int = 12 * MS) -> dict[tuple[int, int], int]:
    return {(rank, step): ns for rank in ranks for step in range(8)}


def first(lines: Sequence[LineShare]) -> tuple[int | None, float]:
    return (lines[0].where.line, lines[0].share) if lines else (None, 0.0)


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
@pytest.mark.parametrize(
    ("phase", "name"), [("forward", "forward"), ("data", "DataLoad batch"), ("optimizer", "optimizer_step")]
)
def test_a_stall_is_at_the_line_in_which_the_host_was(ranks: tuple[int, ...], phase: str, name: str) -> None:
    job = CpuJob(replace(COSTS, stalled=phase, stalls=everywhere(ranks)))
    lost = found_in(job, *stalled(job, ranks, {name: STALL}))
    line, share = first(lost[0].lines)
    assert line == STALL and share > 0.85
    assert (lost[0].where and lost[0].where.line) == STALL
    assert lost[0].lines[0].source == ["line 10"]


def test_the_shares_are_those_of_the_stall() -> None:
    """Two lines, one after the other, of 20 and of 10 ms."""
    job = CpuJob(replace(COSTS, stalls=everywhere([1], 30 * MS)))
    starts = begins(job.traces()[1], "forward")
    spans = [(x + a * MS, x + b * MS, line) for x in starts for a, b, line in ((0, 20, STALL), (20, 30, STALL + 9))]
    lost = found_in(job, (), spans)
    assert [x.where.line for x in lost[0].lines[:2]] == [STALL, STALL + 9]
    assert [x.share for x in lost[0].lines[:2]] == pytest.approx([2 / 3, 1 / 3], abs=0.07)


@pytest.mark.parametrize("steps", [range(8), (1, 3, 5, 7)])
def test_more_work_is_at_the_line_with_more_time_than_on_other_ranks_or_in_other_steps(steps: Sequence[int]) -> None:
    job = CpuJob(replace(COSTS, more={(1, step): 30 for step in steps}))
    ends = ends_of_forward(job.traces()[1])
    lost = found_in(job, (), [(ends[step] - 30 * ONE_NS, ends[step], STALL) for step in steps])
    assert (lost[0].cause, lost[0].ranks) == ("extra-compute", [1])
    line, share = first(lost[0].lines)
    assert line == STALL and share > 0.8


def test_exposed_communication_is_at_the_line_in_which_the_host_waits_for_it() -> None:
    lost = found_in(CpuJob(replace(COSTS, transfer_ns=8 * MS)))
    communication = next(found for found in lost if found.cause == "communication")
    line, share = first(communication.lines)
    assert line == BACKWARD and share > 0.9


def called(sampled: SampledLines, callers: dict[int, tuple[tuple[str, int, str], ...]]) -> SampledLines:
    """The same with these callers of each line, which is then in a function `helper`."""
    places = [
        replace(place, callers=callers[place.line], function="helper") if place.line in callers else place
        for place in sampled.places
    ]
    return replace(sampled, places=places)


CALL = ("/home/me/train.py", 42, "train")


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_a_stall_that_is_spread_over_lines_is_at_the_call_that_leads_to_them(ranks: tuple[int, ...]) -> None:
    """It goes through line 17, 18 and 19 in turn, each for as long."""
    job = CpuJob(replace(COSTS, stalls=everywhere(ranks, 60 * MS)))
    lines = []
    for rank, trace in enumerate(job.traces()):
        starts = begins(trace, "forward") if rank in ranks else []
        spans = [(x + 10 * i * MS, x + 10 * (i + 1) * MS, 17 + i % 3) for x in starts for i in range(6)]
        lines.append(called(sampled(trace, of_phases(trace, spans)), dict.fromkeys((17, 18, 19), (CALL,))))
    lost = summary_of(job.traces(), (), lines).findings
    assert (lost[0].cause, lost[0].ranks) == ("host-stall", list(ranks))
    first_line = lost[0].lines[0]
    assert (first_line.where.line, first_line.where.function) == (42, "train") and first_line.share > 0.8
    assert first_line.inside and first_line.inside.function == "helper"
    assert sum(line.share for line in lost[0].lines) <= 1.01


def validating(other: float = 1.0, core_wait_ns: int = 0) -> list[TimeLost]:
    """The departures, where rank 1 has 30 operators more after its passes, in a function of its own: a validation.
    other: by how much the other rank's operators are slower."""
    job = CpuJob(replace(COSTS, more={(1, step): 30 for step in range(8)}, factor={0: other}))
    plain, more = job.traces()
    spans = [(end - 30 * ONE_NS, end, STALL) for end in ends_of_forward(more)]
    own = called(sampled(more, of_phases(more, spans), MS), {STALL: (CALL,)})
    waits = [RankTraining(rank=rank, core_wait_ns=core_wait_ns) for rank in range(2)]
    lost = summary_of([plain, more], waits, [sampled(plain, of_phases(plain)), own]).findings
    return [found for found in lost if not found.standing]


def test_code_that_only_one_rank_runs_is_told_once_although_no_stall_is_long() -> None:
    departures = validating()
    assert [(found.cause, found.ranks, found.alone) for found in departures] == [("extra-compute", [1], True)]
    where, called_at = departures[0].lines[0].where, departures[0].lines[0].called_at
    assert where.line == STALL and (called_at and called_at.line) == 42


def test_where_cores_are_missing_code_of_one_rank_is_told_although_another_one_hides_it() -> None:
    hidden = 1 + 31 / 40  # of 40 operators in forward and backward
    assert [found for found in validating(hidden) if found.ranks == [1]] == []
    (own,) = (found for found in validating(hidden, core_wait_ns=8 * MS) if found.ranks == [1])
    assert own.alone and own.lines[0].where.line == STALL
    assert own.lost_ns < 2 * MS and own.low_ns is not None


@pytest.mark.parametrize(
    ("phases", "told"),
    [
        ({"forward": 17, "optimizer_step": 17}, [17]),
        ({"forward": 17, "optimizer_step": 18}, [17, 18]),
        # suspects have arrays: none is compared with another
        ({"DataLoad batch": STALL, "forward": 17, "optimizer_step": 17}, [17]),
    ],
)
def test_stalls_of_the_same_code_in_two_phases_are_one_finding(phases: dict[str, int], told: list[int]) -> None:
    of = {"forward": "forward", "optimizer_step": "optimizer", "DataLoad batch": "data"}
    job = CpuJob(replace(COSTS, stalled=tuple(of[phase] for phase in phases), stalls=everywhere([0, 1])))
    lost = found_in(job, *stalled(job, (0, 1), phases))
    found = [one for one in lost if one.cause == "host-stall"]
    assert [(one.ranks, first(one.lines)[0]) for one in found] == [([0, 1], line) for line in told]
    if told == [17]:
        assert found[0].lost_ns == pytest.approx(2 * 12 * MS, rel=0.1) and found[0].phase is None


def test_where_each_look_is_known_short_pieces_are_at_the_lines_seen_in_them() -> None:
    """Operators of 300 µs, between them 300 µs of Python in another line, looked at every 5.1 ms."""
    job = CpuJob(Costs(steps=8, operators=60, operator_ns=300 * US, gap_ns=300 * US, transfer_ns=MS))
    lines = []
    for rank, trace in enumerate(job.traces()):
        rows = trace.events.activity == Activity.CPU_OP
        inside = sorted(zip(trace.events.start_ns[rows].tolist(), trace.events.end_ns[rows].tolist(), strict=True))
        looks = np.arange(inside[0][0] + rank * MS, inside[-1][1], 5_100 * US)
        place = np.array([int(not any(a <= look < b for a, b in inside)) for look in looks.tolist()], np.int32)
        places = [CodeLine("/home/me/train.py", line, "train") for line in (FORWARD, STALL)]
        lines.append(SampledLines(looks - 5_100 * US, looks, place, places, int(looks[-1]), 5_100 * US))
        assert lines[-1].has_each_look
    found = next(found for found in summary_of(job.traces(), (), lines).findings if found.cause == "tiny-kernels")
    line, share = first(found.lines)
    assert line == STALL and share == pytest.approx(1.0, abs=0.02)


def test_operators_that_python_or_a_node_of_autograd_calls_are_counted() -> None:
    """Of a node only its own pieces are seen: it computes nothing."""
    gap, work = (N_PHASES * category + Phase.BACKWARD for category in (TimeCategory.HOST_GAP, TimeCategory.HOST_WORK))
    pieces = [gap, work, work, gap]  # an operator, and a second one that it calls
    pieces += [gap, work, gap, work, gap, gap]  # a node that calls two, and Python after it
    pieces += [gap, gap, gap]  # a node that calls nothing, and Python around it
    slot = np.array(pieces, np.int16)
    segments = HostSegments(np.arange(len(slot) + 1), slot, np.ones(len(slot), np.int64), slot)
    steps = HostSteps(np.array([0]), len(slot))
    assert _called(segments, steps)[Phase.BACKWARD] == (10 + 3) // 2
    assert _called(segments, HostSteps(np.array([4]), 10))[Phase.BACKWARD] == (4 + 2) // 2


@pytest.mark.parametrize(
    ("others", "alone"),
    [
        ((0,), [(0, 42)]),
        ((8 * MS,), [(0, 42)]),
        ((9 * MS,), []),
        ((80 * MS, 0, 0), [(0, 42), (1, 42)]),
        ((80 * MS, 80 * MS, 0), []),
        ((), []),
    ],
)
def test_code_of_one_rank_is_what_the_others_hardly_run(others: tuple[int, ...], alone: list[tuple[int, int]]) -> None:
    helper, loop = CodeLine("/t.py", 5, "helper", callers=(CALL,)), CodeLine("/t.py", 9, "train")
    nothing = np.zeros(2, np.int64)
    times = [LineTimes(nothing, nothing, np.arange(2), np.array([ns, 90 * MS])) for ns in (80 * MS, *others)]
    found = own_code([[helper, loop]] * len(times), times, np.zeros(1, np.int64), 1)
    assert [(own.process, own.where[1]) for own in found] == alone


def test_lines_are_told_of_the_ranks_that_have_some() -> None:
    job = CpuJob(replace(COSTS, stalls=everywhere([1])))
    traces = job.traces()
    assert not any(found.lines for found in summary_of(traces).findings)
    empty = SampledLines(*(np.empty(0, np.int64),) * 2, np.empty(0, np.int32), [], 0, 0)
    own = sampled(traces[1], of_phases(traces[1], stalled(job, (1,), {"forward": STALL})[1]))
    lost = summary_of(traces, (), [empty, own]).findings
    assert lost[0].cause == "host-stall"
    assert first(lost[0].lines)[0] == STALL


def test_on_a_gpu_the_line_is_that_of_the_host_while_the_device_has_no_work() -> None:
    late = {(1, step): 15 * MS for step in range(6)}
    job = GpuJob(late=late, kernel_ns=400 * US)
    traces = job.traces()
    begun = sorted(int(x) for x in traces[1].ranges.start_ns)
    stalls = [(x, x + 15 * MS, STALL) for x in begun]
    lines = [sampled(trace, in_gpu_step(trace, stalls if rank else ())) for rank, trace in enumerate(traces)]
    lost = [found for found in summary_of(traces, (), lines).findings if not found.standing]
    assert lost[0].ranks == [1]
    line, share = first(lost[0].lines)
    assert line == STALL and share > 0.8


def test_on_a_gpu_kernels_are_at_the_line_that_launched_them() -> None:
    job = GpuJob(heavier={(1, step): 3.0 for step in (1, 3, 5)}, launch_ns=300 * US, kernel_ns=400 * US)
    traces = job.traces()
    lines = [sampled(trace, in_gpu_step(trace, ())) for trace in traces]
    lost = [found for found in summary_of(traces, (), lines).findings if found.cause == "extra-compute"]
    assert lost[0].ranks == [1]
    assert first(lost[0].lines)[0] == FORWARD


def in_gpu_step(trace: Trace, spans: Spans) -> LineAt:
    """A step of a GpuJob: launches, and the wait at its end."""
    calls, names = trace.calls, trace.names
    syncs = [
        (int(a), int(b), SYNC)
        for a, b, name in zip(calls.start_ns, calls.end_ns, calls.name, strict=True)
        if names[name] == "cudaStreamSynchronize"
    ]

    def line_at(moment: int) -> int:
        return next((line for a, b, line in [*spans, *syncs] if a <= moment < b), FORWARD)

    return line_at


def test_a_graph_with_lines_comes_back_from_its_bytes() -> None:
    traces = CpuJob(COSTS).traces()
    part = parts_of(traces[:1], [sampled(traces[0], of_phases(traces[0]))])[0]
    graph = graph_of(part)
    assert graph is not None and [x.line for x in graph.code_lines] == [DATA, FORWARD, BACKWARD, OPTIMIZER]
    again = graph_of(compressed(part))
    assert again is not None and again.code_lines == graph.code_lines
    for one, other in zip(again.line_times, graph.line_times, strict=True):
        assert (one == other).all()
    assert len(part.graph.compressed) < len(parts_of(traces[:1])[0].graph.compressed) + 6000
