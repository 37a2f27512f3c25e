"""How much of each kernel's time lies beside work of the other class, against counting nanoseconds one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process import kernels
from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import Summary, Window
from harness.compare.moved import moved
from harness.compare.summaries import compare
from harness.report.compare.tables import moved_section
from harness.report.tables.kernels import KERNELS
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import GEMM, NCCL, Made

OTHER_NCCL = "ncclDevKernel_AllGather_RING_LL"
SOFTMAX = "softmax_warp_forward"
RULES = load_rules()
NAMES = {NCCL: "communication", OTHER_NCCL: "communication", GEMM: "compute", SOFTMAX: "compute"}

events = st.lists(
    st.tuples(st.integers(0, 120), st.integers(1, 40), st.sampled_from([*NAMES, "copy"]), st.integers(0, 1)),
    min_size=1,
    max_size=25,
)  # start, duration, name, device


def summary_of(made: Made) -> Summary:
    return summarise_job(measure_trace(made.trace(), Window.STEPS, RULES))


def measured(rows: list[tuple[int, int, str, int]]) -> Summary:
    made = Made()
    for start, length, name, device in rows:
        if name == "copy":
            made.copy(start, start + length, 8, device=device)
        else:
            made.event(start, start + length, name, device=device)
    return summary_of(made)


def brute(rows: list[tuple[int, int, str, int]]) -> Counter[str]:
    """Of each name its nanoseconds during which the same device does work of the other class, launch by launch."""
    found: Counter[str] = Counter()
    for start, length, name, device in rows:
        others = {
            t
            for s, d, other, on in rows
            if on == device and other in NAMES and name in NAMES and NAMES[other] != NAMES[name]
            for t in range(s, s + d)
        }
        found[name] += len(others & set(range(start, start + length)))
    return found


@given(events, st.integers(1, 30))
def test_the_time_beside_the_other_class_is_that_of_the_nanoseconds(
    rows: list[tuple[int, int, str, int]], at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "CHUNK", at_once)  # of a large trace few events are looked at together
        found = measured(rows)
    expected = brute(rows)
    for kernel in found.kernels:
        assert kernel.overlapped_ns == expected[kernel.name]
        communicates = NAMES[kernel.name] == "communication"
        assert kernel.exposed_ns == (kernel.duration_ns - expected[kernel.name] if communicates else None)


def test_one_stream_of_communication_adds_up_to_the_devices_exposed_time() -> None:
    s = measured([(0, 100, GEMM, 0), (60, 80, NCCL, 0), (150, 20, OTHER_NCCL, 0), (160, 100, SOFTMAX, 0)])
    by_name = {k.name: (k.overlapped_ns, k.exposed_ns) for k in s.kernels}
    assert by_name == {GEMM: (40, None), NCCL: (40, 40), OTHER_NCCL: (10, 10), SOFTMAX: (10, None)}
    assert sum(exposed or 0 for _, exposed in by_name.values()) == s.devices[0].exposed_communication_ns


def test_the_table_and_its_file_have_the_columns_where_there_is_communication() -> None:
    s = measured([(0, 100, GEMM, 0), (60, 80, NCCL, 0)])
    shown = KERNELS.on_page(s)
    rows = {row[shown.head.index("kind")]: row for row in shown.rows}
    exposed, overlapped = shown.head.index("exposed"), shown.head.index("overlapped")
    assert (rows["communication"][exposed], rows["communication"][overlapped]) == ("40 ns", "50.0 %")
    assert [row[overlapped] for row in shown.rows if row[exposed] == "–"] == ["40.0 %"]
    assert KERNELS.file is not None
    assert {row["name"]: row["exposed_ns"] for row in KERNELS.file.records(s)} == {GEMM: None, NCCL: 40}
    alone = KERNELS.on_page(measured([(0, 100, GEMM, 0)]))
    assert not {"exposed", "overlapped"} & {*alone.head}


def test_whole_cuda_graphs_leave_it_unknown() -> None:
    rows = [(0, 100, GEMM, 0), (60, 80, NCCL, 0), (200, 500, "CUDA graph 1", 0)]
    assert [(k.overlapped_ns, k.exposed_ns) for k in measured(rows).kernels] == [(None, None)] * 3


def test_a_comparison_shows_the_exposed_time_of_both_runs() -> None:
    def run(length: int) -> Summary:
        made = Made()
        for step in range(2):
            at = 1000 * step
            made.step(at, at + 1000, step).event(at, at + 300, launch_ns=at).event(
                at + 250, at + length, NCCL, launch_ns=at
            )
        return summary_of(made)

    a, b = run(400), run(700)
    assert {x.name: (x.a_exposed_ns, x.b_exposed_ns) for x in moved(a, b) if x.what == "kernel"}[NCCL] == (100, 400)
    kernel = next(t for t in moved_section([compare(a, b, ("a", "b"))]).tables if t.head[0] == "kernel")
    assert kernel.head[-2:] == ("exposed a", "exposed b")
    assert [row[-2:] for row in kernel.rows if row[0] == NCCL] == [("100 ns", "400 ns")]
