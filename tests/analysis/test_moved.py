"""Statistics of two runs side by side: what moved most in milliseconds is first, and what is not known is left out."""

from __future__ import annotations

import pytest

from harness.analysis.summary import TOP_KERNELS, KernelTime, RangeTime, RankSteps, Spread, Steps, Summary, TraceSource
from harness.compare.moved import moved
from harness.compare.summaries import compare
from harness.report.compare.tables import moved_section
from harness.report.compare.terminal import render_comparisons

MS = 1_000_000


def run(step_ms: dict[str, int], ranges: dict[str, int], kernels: dict[str, int]) -> Summary:
    """step_ms: of each host, two ranks each; ranges and kernels: milliseconds in all. Two steps a rank."""
    hosts = [host for host in step_ms for _ in range(2)]
    every = [step_ms[host] * MS for host in hosts]
    middle = sorted(every)[len(every) // 2]
    return Summary(
        sources=[TraceSource(path=f"{i}.json", tool="kineto", rank=i, host=h) for i, h in enumerate(hosts)],
        steps=Steps(
            source="ProfilerStep",
            counted=2 * len(hosts),
            duration=Spread(count=8, median_ns=middle, min_ns=1, max_ns=9, p10_ns=1, p90_ns=9),
            per_rank=[RankSteps(rank=i, durations_ns=[ns, ns], median_ns=ns) for i, ns in enumerate(every)],
        ),
        ranges=[RangeTime(name=n, instances=8, host_ns=v * MS, kernels=0, kernel_ns=0) for n, v in ranges.items()],
        kernels=[
            KernelTime(
                name=n, kind="gemm", count=16, duration_ns=v * MS, mean_ns=1, min_ns=1, max_ns=1,
                share=v / sum(kernels.values()),
            )
            for n, v in kernels.items()
        ],
    )  # fmt: skip


A = run({"node1": 100, "node2": 100}, {"forward": 80, "data": 8, "gone": 16}, {"gemm": 80, "softmax": 40})
B = run({"node1": 104, "node2": 160, "node3": 90}, {"forward": 120, "data": 108}, {"gemm": 120, "softmax": 96})


def test_what_moved_most_in_milliseconds_per_rank_and_step_is_first() -> None:
    found = moved(A, B)
    assert [(x.name, x.a_ns / MS, x.b_ns / MS) for x in found if x.what == "node"] == [
        ("node2", 100, 160),
        ("node1", 100, 104),
    ]
    assert [(x.name, x.by_ns / MS) for x in found if x.what == "range"] == [("data", 8.0), ("gone", -2.0)]
    assert [(x.name, x.a_calls) for x in found if x.what == "kernel"] == [("softmax", 2.0)]


MANY = {f"k{i}": 30 for i in range(TOP_KERNELS - 2)}
CUT = run({"node1": 100}, {}, {"large": 3000, **MANY, "longer in a": 11})
LATER = run({"node1": 100}, {}, {**MANY, "longer in b": 11, "another in b": 10})


@pytest.mark.parametrize(
    ("a", "b", "moved_kernels"),
    [
        (A, run({"node1": 100}, {}, {"gemm": 40, "new": 40}), {"softmax", "new"}),
        (A, run({"node1": 100}, {}, {}), set()),  # a run that was not traced
        (CUT, LATER, {"large"}),  # a kernel below the cut of a long table is not called gone
    ],
)
def test_kernels_that_appeared_or_vanished_moved(a: Summary, b: Summary, moved_kernels: set[str]) -> None:
    found = [x for x in moved(a, b) if x.what == "kernel"]
    assert {x.name for x in found} == moved_kernels
    assert all(0.0 in (x.a_calls, x.b_calls) for x in found)


def test_equal_runs_moved_nothing_but_their_nodes_are_shown() -> None:
    assert {(x.what, x.by_ns) for x in moved(A, A)} == {("node", 0.0)}
    assert moved(Summary(), A) == moved(A, Summary()) == []


def test_terminal_and_page_show_it() -> None:
    pair = compare(A, B, ("a", "b"))
    text = render_comparisons([pair])
    line = next(line.split() for line in text.splitlines() if line.split()[:2] == ["range", "data"])
    assert line == ["range", "data", "1.00", "ms", "9.00", "ms", "+8.00", "ms"]
    section = moved_section([pair])
    assert [table.head[0] for table in section.tables] == ["node", "range", "kernel"]
    assert section.tables[0].rows[0] == ("node2", "100 ms", "160 ms", "+60.0 ms", "2", "2")
