"""Two runs differ when their steps' distributions do; what cannot be compared is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.metric_values import step_durations_ns
from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import (
    TOP_KERNELS,
    Collective,
    CollectivePhase,
    Device,
    IdleCause,
    KernelTime,
    KindTime,
    Problem,
    Quality,
    RangeTime,
    RankSteps,
    RankTraining,
    RecordingVerdict,
    RunEnvironment,
    Spread,
    Steps,
    StepSplit,
    Summary,
    TraceSource,
)
from harness.analysis.summary.problem_texts import BUSY, UNMARKED_STEPS
from harness.cli.main import main
from harness.common.errors import RequestError
from harness.compare.moved import moved
from harness.compare.summaries import compare
from harness.compare.verdict import ChangeVerdict
from harness.report.compare.page import ComparedRuns, compose_comparison
from harness.report.compare.tables import moved_section
from harness.report.compare.terminal import render_comparisons
from harness.report.tables.terminal import render

NAMES = ("a", "b")
MS = 1_000_000


def a_kernel(name: str) -> KernelTime:
    return KernelTime(name=name, kind="gemm", share=0.5, count=1, duration_ns=1, mean_ns=1, min_ns=1, max_ns=1)


def an_all_reduce(count: int) -> Collective:
    return Collective(kind="all_reduce", count=count, ranks=1, bytes=10 * count, duration_ns=8, mean_ns=1)


def a_summary(
    step_ns: list[int], *, tokens: int = 100, model: str = "tiny", kernels: tuple[str, ...] = ("gemm",)
) -> Summary:
    window = sum(step_ns)
    return Summary(
        steps=Steps(source="ProfilerStep", per_rank=[RankSteps(rank=0, durations_ns=step_ns)]),
        devices=[
            Device(
                rank=0, device=0, source="x", gpu_events=1, kernels=1, window_ns=window, compute_ns=window // 2,
                communication_ns=window // 4, exposed_communication_ns=window // 8,
                overlapped_communication_ns=window // 8, memory_ns=0, exposed_memory_ns=0,
                idle_ns=window - window // 2 - window // 8,
            )
        ],
        kernels=[a_kernel(k) for k in kernels],
        collectives=[an_all_reduce(len(step_ns))],
        collective_phases=[
            CollectivePhase(
                kind="all_reduce", phase="backward", count=len(step_ns), bytes=10 * len(step_ns), duration_ns=8
            )
        ],
        training=[
            RankTraining(rank=0, model=model, seq_length=8, tokens=tokens * len(step_ns), steps_counted=len(step_ns))
        ],
    )  # fmt: skip


def test_other_batch_sizes_are_compared_per_token() -> None:
    found = compare(a_summary([1000] * 5, tokens=100), a_summary([2000] * 5, tokens=200), NAMES)
    assert found.normalisation == "per token"
    assert found.step_time is not None
    assert found.step_time.ratio == pytest.approx(1.0)


def test_another_model_is_refused_unless_forced() -> None:
    a, b = a_summary([1]), a_summary([1], model="other")
    with pytest.raises(RequestError, match="model tiny against other"):
        compare(a, b, NAMES)
    assert [d.name for d in compare(a, b, NAMES, force=True).configuration] == ["model"]


@pytest.mark.parametrize(("count", "verdict"), [(3, ChangeVerdict.UNKNOWN), (4, ChangeVerdict.WORSE)])
def test_a_handful_of_steps_decides_nothing(count: int, verdict: ChangeVerdict) -> None:
    found = compare(a_summary([1000] * 9), a_summary([2000] * count), NAMES)
    assert found.step_time is not None and found.step_time.verdict is verdict
    words = "+100.0 % ± 0.0 % worse" if verdict is ChangeVerdict.WORSE else "cannot tell: too few steps to tell"
    assert words in " ".join(render_comparisons([found]).split())


@pytest.mark.parametrize("marked", [0, 1])
def test_steps_that_a_program_does_not_mark_have_no_verdict(marked: int) -> None:
    runs = [a_summary([100] * 10), a_summary([200] * 10)]
    runs[1 - marked].steps.source = "periodicity of flash_fwd_kernel"
    pair = compare(runs[0], runs[1], NAMES)
    assert pair.step_time is not None and pair.step_time.ratio == 2
    assert (pair.step_time.verdict, pair.step_time.why) == (ChangeVerdict.UNKNOWN, UNMARKED_STEPS)
    text = " ".join(render_comparisons([pair], runs).split())
    (said,) = compose_comparison(ComparedRuns(NAMES, runs, [pair])).said.sentences
    assert f"(10 and 10 steps): cannot tell: {UNMARKED_STEPS}" in text and f"cannot tell ({UNMARKED_STEPS})" in said
    assert "worse" not in text + said


def test_what_a_cpu_cannot_show_is_said() -> None:
    on_cpu = a_summary([1])
    on_cpu.devices[0].device_kind = "cpu"
    (note,) = compare(a_summary([1]), on_cpu, NAMES).notes
    assert note.startswith("a CPU run cannot show the overlap")


@pytest.mark.parametrize(
    ("kernels", "note"),
    [((), "b: no kernel was recorded"), (tuple(f"k{i}" for i in range(TOP_KERNELS)), "b: only the 200 kernels with")],
)
def test_which_kernels_are_not_known_is_said(kernels: tuple[str, ...], note: str) -> None:
    notes = compare(a_summary([1]), a_summary([1], kernels=kernels), NAMES).notes
    assert [each.startswith(note) for each in notes] == [True]


def test_a_kind_of_work_in_another_precision_is_named() -> None:
    def products(precision: str, time_ns: int) -> KindTime:
        return KindTime(kind="gemm", precision=precision, count=1, duration_ns=time_ns, share=1)

    a = a_summary([1]).model_copy(update={"kinds": [products("fp32", 90)]})
    b = a_summary([1]).model_copy(update={"kinds": [products("fp32", 10), products("bf16", 30)]})
    found = compare(a, b, NAMES)
    assert [(p.precision, p.share_a, p.share_b) for p in found.precisions] == [("bf16", 0.0, 0.75), ("fp32", 1.0, 0.25)]
    assert "gemm  bf16  0.0 %    75.0 %" in render_comparisons([found])
    assert compare(a, a, NAMES).precisions == []


def test_of_several_runs_each_is_against_the_first_and_what_one_run_of_each_says_is_said_once() -> None:
    base, twice, other = a_summary([10] * 9), a_summary([20] * 9), a_summary([5] * 9)
    text = render_comparisons([compare(base, twice, ("one", "two")), compare(base, other, ("one", "three"))])
    words = " ".join(text.split())
    assert text.startswith("a: one\nb: two\nc: three\n")
    assert "+100.0 % ± 0.0 % worse" in words and "−50.0 % ± 0.0 % better" in words
    assert text.count("interval is of one run each") == 1 and "doubtful" not in text
    assert "not whether the commands do: `bash slurm.sh check A B` compares several runs" in words
    assert text.index("95 % interval") < text.index("interval is of one run each") < text.index("Results")


def row_of(a: Summary, b: Summary) -> list[str]:
    """The cells of the row of all-reduces in a comparison."""
    lines = render_comparisons([compare(a, b, NAMES)]).splitlines()
    (row,) = (line for line in lines if line.startswith("  all_reduce"))
    return re.split(r"\s{2,}", row.strip())[1:5]


def test_of_collectives_of_which_some_have_no_size_the_others_are_the_least() -> None:
    """As in ZeRO-2: gradients of known size, and one small call of unknown size."""
    a = a_summary([10] * 9)
    unknown = [c.model_copy(update={"bytes": None}) for c in a.collective_phases]
    assert row_of(a, a.model_copy(update={"collective_phases": unknown})) == ["1", "1", "0.00001", "–"]
    small = CollectivePhase(kind="all_reduce", phase="optimizer", count=9, duration_ns=1)
    more = [row.model_copy(update={"bytes": 9 * 2_490_000}) for row in a.collective_phases]
    b = a.model_copy(update={"collective_phases": [*more, small]})
    assert row_of(a, b) == ["1", "2", "0.00001", "≥ 2.49"]
    assert "all_reduce_bytes" not in metrics_by_name(b)
    partly = more[0].model_copy(update={"bytes": None, "least_bytes": 9 * 2_490_000})
    assert "≥ 2.49 MB" in render(b.model_copy(update={"collective_phases": [partly]}))
    of_least = metrics_by_name(b.model_copy(update={"collective_phases": [partly, more[0]]}))
    assert of_least["message_bytes"] == 2 * 2_490_000


def test_a_run_that_was_disturbed_makes_the_comparison_doubtful_with_its_reason() -> None:
    finding = Problem(severity=RecordingVerdict.DOUBTFUL, what=BUSY, evidence="n0: others at least 50 %")
    a, b = a_summary([20] * 9), a_summary([10] * 9)
    disturbed = a.model_copy(update={"quality": Quality(verdict=RecordingVerdict.DOUBTFUL, problems=[finding])})
    text = render_comparisons([compare(disturbed, b, NAMES)])
    assert "(9 and 9 steps), doubtful" in " ".join(text.split())
    assert f"doubtful: a: {BUSY}: n0: others at least 50 %" in text
    assert text.count(BUSY) == 1
    of_three = [compare(a, x, ("one", "more")) for x in (b, disturbed)]
    assert f"doubtful: c: {BUSY}" in render_comparisons(of_three)


def test_metrics_are_per_step_and_of_the_window() -> None:
    known = metrics_by_name(a_summary([1000] * 10))
    assert known["all_reduce_count"] == 1
    assert known["all_reduce_bytes"] == 10
    assert known["all_gather_count"] == 0
    assert known["exposed_communication_share"] == pytest.approx(0.125)
    assert known["overlap_fraction"] == pytest.approx(0.5)
    assert "bubble" not in known


def left_out(names: list[list[str]], durations: list[list[int]]) -> Summary:
    """A job whose ranks recorded steps with these names."""
    devices = [
        a_summary([1])
        .devices[0]
        .model_copy(update={"rank": rank, "steps": [a_step(*step) for step in zip(n, d, strict=True)]})
        for rank, (n, d) in enumerate(zip(names, durations, strict=True))
    ]
    per_rank = [RankSteps(rank=rank, durations_ns=d) for rank, d in enumerate(durations)]
    return Summary(steps=Steps(source="ProfilerStep", per_rank=per_rank), devices=devices)


def a_step(name: str, window_ns: int) -> StepSplit:
    return StepSplit(
        step=name, window_ns=window_ns, compute_ns=window_ns, communication_ns=0, exposed_communication_ns=0,
        overlapped_communication_ns=0, memory_ns=0, exposed_memory_ns=0, idle_ns=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "durations", "expected"),
    [
        (["123", "0123"], [[11, 12, 13], [10, 11, 12, 13]], [11, 12, 13]),  # a warm-up of its own
        (["012", "0123"], [[10, 11, 12], [10, 11, 12, 13]], [10, 11, 12]),  # a recording that ends early
        (["010", "1010"], [[11, 12, 13], [10, 11, 12, 13]], [11, 12, 13]),  # each epoch counts anew
        (["123", "789"], [[11, 12, 13], [11, 12, 13]], [11, 12, 13]),
    ],
)
def test_steps_of_ranks_are_paired_by_their_marks_and_else_from_the_last(
    names: list[str], durations: list[list[int]], expected: list[int]
) -> None:
    assert step_durations_ns(left_out(list(map(list, names)), durations)) == expected


def with_idle(step_ns: int, loading: int, launching: int, device: str = "gpu") -> Summary:
    """Steps with idle time of two causes, in nanoseconds; the rest is compute."""
    s = a_summary([step_ns] * 9)
    causes = [
        IdleCause(cause=cause, duration_ns=9 * ns, share=0.5)
        for cause, ns in (("data loading", loading), ("launch-bound", launching))
        if ns
    ]
    idle = 9 * (loading + launching)
    update = {
        "compute_ns": 9 * step_ns - idle, "communication_ns": 0, "exposed_communication_ns": 0,
        "overlapped_communication_ns": 0, "idle_ns": idle, "idle_causes": causes, "device_kind": device,
    }  # fmt: skip
    spread = Spread(count=9, median_ns=step_ns, min_ns=step_ns, max_ns=step_ns, p10_ns=step_ns, p90_ns=step_ns)
    devices = [s.devices[0].model_copy(update=update)]
    steps = s.steps.model_copy(update={"duration": spread})
    return s.model_copy(update={"devices": devices, "idle_causes": causes, "steps": steps})


def stored(folder: Path, *runs: Summary) -> list[str]:
    """The runs as files, a and b."""
    files = [folder / f"summary-{name}.json" for name in NAMES]
    for file, run in zip(files, runs, strict=True):
        file.write_text(run.model_dump_json())
    return list(map(str, files))


TWICE = (a_summary([10] * 9), a_summary([20] * 9))
IDLE = (with_idle(10_000_000, 0, 500_000), with_idle(10_000_000, 2_000_000, 500_000))
BF16 = KindTime(kind="gemm", precision="bf16", count=1, duration_ns=9, share=1)
OF_ONE = (TWICE[0].model_copy(update={"kinds": [BF16]}), TWICE[0])


@pytest.mark.parametrize(
    ("runs", "condition", "ends"),
    [
        (TWICE, "step_time > 1.05", (1, "")),
        (TWICE, "step_time > 3", (0, "")),
        (TWICE, "memory_share > 1.1", (0, "")),  # zero in both
        (TWICE, "no_such > 1", (2, "no_such")),
        (TWICE, "step_time", (2, "is a number; compare it with one, as in --fail-if 'step_time > 1.05'")),
        (TWICE, "2 * 3", (2, "")),
        (OF_ONE, "gemm_bf16_share > 1", (2, "gemm_bf16_share was not measured in every run")),  # no misspelt name
        # from zero to something is infinitely more
        (IDLE, "idle_data_loading_share > 1.1", (1, "")),
        (IDLE, "idle_data_loading_share < 1.1", (0, "")),
        (IDLE, "idle_synchronisation_share > 1", (0, "")),
    ],
)
def test_fail_if_is_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], runs: Any, condition: str, ends: tuple[int, str]
) -> None:
    assert main(["compare", *stored(tmp_path, *runs), "--fail-if", condition]) == ends[0]
    shown = capsys.readouterr()
    assert ends[1] in shown.err
    if runs is IDLE:
        (row,) = [line.split() for line in shown.out.splitlines() if "idle: data loading" in line]
        assert row[3:] == ["0.0", "%", "20.0", "%"]  # no ratio: a division by zero


def test_a_run_is_not_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = stored(tmp_path, *TWICE)
    (tmp_path / "x").mkdir()
    for words in ([one, one], [one, other, one], [one, str(tmp_path / "x" / ".." / "summary-a.json")]):
        assert main(["compare", *words]) == 2
        assert "is given twice: a run cannot be compared with itself" in capsys.readouterr().err
    assert main(["compare", one, other]) == 0


@pytest.mark.parametrize(("device", "launching"), [("gpu", "launch-bound"), ("cpu", "between operators")])
def test_the_terminal_says_which_idle_time_went_away(device: str, launching: str) -> None:
    a, b = with_idle(10_000_000, 5_000_000, 500_000, device), with_idle(5_000_000, 0, 750_000, device)
    text = render_comparisons([compare(a, b, NAMES)], [a, b])
    words = " ".join(text.split())
    assert "The difference, −5 ms per step, is mostly −5 ms idle (data loading)." in words
    assert "idle: data loading 50.0 % 0.0 % 0×" in words
    assert f"idle: {launching} 5.0 % 15.0 % 3×" in words


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_comparison_obeys_the_width_of_the_terminal(width: int) -> None:
    runs = [a_summary([100] * 10), a_summary([200] * 10)]
    text = render_comparisons([compare(runs[0], runs[1], NAMES)], runs, width)
    assert max(map(len, text.splitlines())) <= width
    assert "b / a" in text


def hosts_of(step_ms: dict[str, int], ranges: dict[str, int], kernels: dict[str, int]) -> Summary:
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


A = hosts_of({"node1": 100, "node2": 100}, {"forward": 80, "data": 8, "gone": 16}, {"gemm": 80, "softmax": 40})
B = hosts_of({"node1": 104, "node2": 160, "node3": 90}, {"forward": 120, "data": 108}, {"gemm": 120, "softmax": 96})


def test_what_moved_most_in_milliseconds_per_rank_and_step_is_first() -> None:
    found = moved(A, B)
    assert [(x.name, x.a_ns / MS, x.b_ns / MS) for x in found if x.what == "node"] == [
        ("node2", 100, 160),
        ("node1", 100, 104),
    ]
    assert [(x.name, x.by_ns / MS) for x in found if x.what == "range"] == [("data", 8.0), ("gone", -2.0)]
    assert [(x.name, x.a_calls) for x in found if x.what == "kernel"] == [("softmax", 2.0)]


MANY = {f"k{i}": 30 for i in range(TOP_KERNELS - 2)}
CUT = hosts_of({"node1": 100}, {}, {"large": 3000, **MANY, "longer in a": 11})
LATER = hosts_of({"node1": 100}, {}, {**MANY, "longer in b": 11, "another in b": 10})


@pytest.mark.parametrize(
    ("a", "b", "moved_kernels"),
    [
        (A, hosts_of({"node1": 100}, {}, {"gemm": 40, "new": 40}), {"softmax", "new"}),
        (A, hosts_of({"node1": 100}, {}, {}), set()),  # a run that was not traced
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


def with_environment(summary: Summary, **fields: Any) -> Summary:
    every: dict[str, Any] = {"nodes": ["n0"], "used": ["torch"], "packages": {"torch": "2.7"}, **fields}
    return summary.model_copy(update={"environments": [RunEnvironment(**every)]})


def differing_lines(a: Summary, b: Summary) -> list[str]:
    """The block of the comparison in which it says what differs, one line for each sentence."""
    block = render_comparisons([compare(a, b, NAMES, force=True)]).split("\n\n")[1]
    return block.replace("\n  ", " ").splitlines()


def test_three_lines_say_what_was_changed_what_differs_besides_and_what_one_alone_recorded() -> None:
    plain = a_summary([MS] * 8)
    a = with_environment(plain, packages={"torch": "2.7", "pytest": "8.1", "idle": "1"}, system={"kernel": "5.14"})
    new = {"torch": "2.8", "pytest": "8.2"}
    b = with_environment(
        a_summary([MS] * 8, model="small"), packages=new, variables={"NCCL_ALGO": "Ring"}, modules=["cuda/12"],
        system={"kernel": "6.1", "governor": "powersave"},
    )  # fmt: skip
    assert differing_lines(a, b) == [
        "Changed: model tiny → small.",
        "Not asked for, but different: torch 2.7 → 2.8, NCCL_ALGO not set → Ring, module cuda not loaded → 12, "
        "kernel 5.14 → 6.1, and 2 packages that neither run used.",
        "Recorded in one of them only: governor (b).",
    ]
    assert differing_lines(a, a)[1:] == ["Not asked for, but different: nothing."]
    assert differing_lines(plain, plain)[1:] == [], "nothing is known of what it ran with"


def test_a_variable_that_was_asked_for_is_named_once() -> None:
    asked = [
        with_environment(a_summary([MS] * 8), variables={"NCCL_ALGO": text}).model_copy(
            update={"run": {"inherited": {"NCCL_ALGO": text}}}
        )
        for text in ("Ring", "Tree")
    ]
    assert differing_lines(*asked) == ["Changed: NCCL_ALGO Ring → Tree.", "Not asked for, but different: nothing."]


def test_a_long_line_is_cut_and_json_has_all() -> None:
    packages = [{f"p{i}": f"{version}.{i}" for i in range(9)} for version in (1, 2)]
    a, b = (with_environment(a_summary([MS] * 8), packages=each, used=[*each]) for each in packages)
    assert differing_lines(a, b)[1].endswith("p5 1.5 → 2.5 and 3 more.")
    assert len(compare(a, b, NAMES).environment.besides) == 9
