"""Whatever a trace holds, a summary comes out whose parts add up; nothing a recording can contain is a traceback."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.summary import Summary, Window
from harness.report.tables.table import WIDTH
from harness.report.tables.terminal import render
from harness.traces.trace import Activity, CopyKind, RangeKind
from tests.analysis.measuring import summary_of
from tests.synthetic.columns import GEMM, NCCL, Made

moments = st.integers(0, 400)
lengths = st.integers(0, 120)
names = st.sampled_from(
    [
        "forward",
        "backward",
        "DataLoad batch 1",
        "recv",
        "iteration_1",
        "batch_2",
        "forward mb0 stage0",
        "backward mb0 stage0",
    ]
)
events = st.tuples(
    moments,
    lengths,
    st.sampled_from([GEMM, NCCL, "unknown_kernel", "aten::mm", "c10d::allreduce_"]),
    st.sampled_from([*Activity, Activity.KERNEL, Activity.KERNEL]),
    st.integers(0, 2),
    st.integers(-1, 400),
)
ranges = st.tuples(moments, st.integers(-5, 120), names, st.sampled_from(list(RangeKind)), st.integers(1, 3))
collectives = st.tuples(moments, lengths, st.sampled_from(["all_reduce", "send", "recv"]), st.integers(-1, 64))


@st.composite
def traces(draw: st.DrawFn, rank: int | None = None) -> Made:
    made = Made(rank=rank, world_size=2 if rank is not None else None, path=f"rank{rank}.json", clock="unix")
    for start, length, name, activity, device, launch in draw(st.lists(events, max_size=12)):
        copy = {"bytes": 64, "copy_kind": CopyKind.H2D} if activity == Activity.MEMCPY else {}
        made.event(start, start + length, name, activity=activity, device=device, launch_ns=min(launch, start), **copy)
    for start, length, name, kind, thread in draw(st.lists(ranges, max_size=8)):
        made.range(start, start + length, name, kind=kind, thread=thread)
    for start, length, sort, size in draw(st.lists(collectives, max_size=5)):
        made.collective(start, start + length, sort, size=size, members=2)
    for i in range(draw(st.integers(0, 3))):
        made.step(i * 100, i * 100 + 100, i)
    return made


def check(summary: Summary) -> None:
    for d in summary.devices:
        assert d.window_ns >= 0
        if d.idle_ns is not None:
            assert d.compute_ns + d.exposed_communication_ns + d.exposed_memory_ns + d.idle_ns == d.window_ns
            assert sum(c.duration_ns for c in d.idle_causes) == d.idle_ns
        assert d.exposed_communication_ns + d.overlapped_communication_ns == d.communication_ns
    assert Summary.model_validate_json(summary.model_dump_json()) == summary
    for width in (80, WIDTH):
        text = render(summary, width)
        assert all(len(line) <= width for line in text.splitlines())


@given(traces(), st.sampled_from(list(Window)))
def test_any_single_trace_gives_a_summary_that_adds_up(made: Made, window: Window) -> None:
    check(summary_of(made, window=window))


@given(traces(rank=0), traces(rank=1), st.sampled_from(list(Window)))
def test_any_two_ranks_give_a_summary_that_adds_up(first: Made, second: Made, window: Window) -> None:
    found = summary_of(first, second, window=window)
    check(found)
    for c in found.collectives:
        assert c.waiting_ns is None or 0 <= c.waiting_ns <= c.duration_ns
