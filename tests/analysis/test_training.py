"""What the scripts and the monitor wrote down becomes throughput and MFU, or stays unknown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Problem, RankTraining, RecordingVerdict, Window
from harness.measure.jobs import name_rank, summarise
from harness.measure.run_contents import efficiency, profiler_cost
from harness.measure.run_files import read_monitor, read_training
from harness.theory.devices import peak_flops_per_s
from tests.analysis.measuring import part_of, parts_of
from tests.synthetic.columns import Made

MS = 10**6
A100 = {"device_name": "NVIDIA A100-SXM4-80GB", "dtype": "bfloat16"}
H100 = {"device_name": "NVIDIA H100 80GB HBM3", "dtype": "bfloat16"}
START, END = {"event": "start", "rank": 0}, {"event": "end", "status": "completed"}
Lines = list[dict[str, Any]]


def training(rank: int = 0, **more: Any) -> RankTraining:
    facts: dict[str, Any] = {"step_durations_ns": [10**9, 10**9], "median_step_ns": 10**9, "tokens": 2000, "samples": 4}
    return RankTraining(**({"rank": rank, "world_size": 2, "flops_per_token": 6e9} | facts | more))


SLOW = training(1, step_durations_ns=[2 * 10**9, 2 * 10**9], median_step_ns=2 * 10**9)


@pytest.mark.parametrize(
    ("ranks", "recomputes", "expected"),
    [
        # every rank's tokens over the slowest rank's time
        ([training(0), SLOW], False,
         {"tokens_per_s": 1000.0, "samples_per_s": 2.0, "model_flops_per_s_per_device": 1000 * 6e9 / 2}),
        ([training(0, **A100), training(1, **A100)], False,
         {"mfu": 2000 * 6e9 / 2 / 312e12, "peak_source": "the device table", "hfu": None}),
        ([training(0, **H100)], True, {"mfu": 1000 * 6e9 / 989e12, "hfu": 1000 * 6e9 / 989e12 * 4 / 3}),
        *(([training(0, **H100 | {"dtype": dtype})], False, {"peak_flops_per_s": tflops * 1e12})
          for dtype, tflops in (("float32", 67), ("tf32", 494.5), ("bfloat16", 989), ("float8", 1979))),
        ([training(0, **A100, peak_flops_per_s=250e12)], False,
         {"peak_flops_per_s": 250e12, "peak_source": "measured on the device"}),
    ],
)  # fmt: skip
def test_throughput_and_its_share_of_the_peak_at_the_trainings_precision(
    ranks: list[RankTraining], recomputes: bool, expected: dict[str, Any]
) -> None:
    found = efficiency(ranks, recomputes=recomputes)
    shown = {name: getattr(found, name) for name in expected}
    assert shown == {
        name: value if isinstance(value, str | None) else pytest.approx(value) for name, value in expected.items()
    }


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA A100-SXM-64GB", "bf16", 344),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5),
        ("NVIDIA GH200 480GB", "bf16", 989),
        ("NVIDIA H200", "tf32", 494.5),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI250X", "tf32", None),
        ("AMD EPYC 7763 64-Core Processor", "fp32", None),
        ("NVIDIA B300", "bf16", None),
    ],
)
def test_an_unknown_device_or_precision_has_no_peak(name: str, precision: str | None, tflops: float | None) -> None:
    found = peak_flops_per_s(name, precision)
    assert (found[0] / 1e12 if found else None) == tflops


def test_a_training_that_wrote_no_step_has_no_throughput() -> None:
    assert efficiency([]) is None
    assert efficiency([training(step_durations_ns=[], tokens=None, median_step_ns=None)]) is None


def write(path: Path, lines: Lines) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def read(path: Path, *lines: dict[str, Any]) -> tuple[list[RankTraining], list[Problem]]:
    return read_training([write(path / "rank0.jsonl", list(lines))])


def steps(*phases: str, **values: int) -> Lines:
    """A step of each phase; values: of every one."""
    return [{"event": "step", "phase": phase, "step_ns": 5} | values for phase in phases]


def peaks(*phases: str) -> Lines:
    return [step | {"peak_memory_bytes": n} for n, step in enumerate(steps(*phases), 1)]


STEP: dict[str, Any] = {"event": "step", "step": 0, "unix_ns": 1, "step_ns": 5, "tokens": 7}
UNREADABLE = ("training metrics have unreadable lines", "rank0.jsonl: 1")
NO_TOKENS: list[Any] = ["x", [], float("nan"), 10**400]
READ: list[tuple[Lines, dict[str, Any], list[tuple[str, str]]]] = [
    ([*steps("skip", "active", "active", "after"), END], {"phase_counted": "active", "steps_counted": 2}, []),
    ([*steps("skip", "after"), END], {"phase_counted": "after", "steps_counted": 1}, []),
    ([*steps("skip", "skip"), END], {"phase_counted": None, "steps_counted": 2}, []),
    ([*peaks("skip", "wait", "warmup", "active", "after"), END],
     {"peak_memory_bytes": 2, "profiler_memory_bytes": 3}, []),
    ([*peaks("skip", "wait", "warmup", "active", "after", "after", "after"), END],
     {"peak_memory_bytes": 4, "profiler_memory_bytes": 3}, []),
    ([*peaks("skip", "skip", "after", "after", "after"), END],
     {"peak_memory_bytes": 5, "profiler_memory_bytes": None}, []),
    ([*peaks("warmup", "active", "active", "after", "after"), END],
     {"peak_memory_bytes": 5, "profiler_memory_bytes": None}, []),
    ([{"event": "step", "phase": phase, "unix_ns": i * 1000, "step_ns": 500}
      for i, phase in enumerate(["warmup", "active", "active", "after"])] + [END],
     {"profiled_unix_ns": (1000, 2500)}, []),
    ([{"event": "step", "step_ns": 5, "loss": 2.5}], {"status": None, "steps_total": 1, "last_loss": 2.5},
     [("training metrics lack their last line", "rank0.jsonl: the training was killed, ")]),
    *[([STEP, STEP | {"tokens": tokens}, END], {"steps_total": 1, "tokens": 7}, [UNREADABLE]) for tokens in NO_TOKENS],
]  # fmt: skip


@pytest.mark.parametrize(("lines", "expected", "problems"), READ)
def test_a_ranks_lines_are_its_numbers(
    tmp_path: Path, lines: Lines, expected: dict[str, Any], problems: list[tuple[str, str]]
) -> None:
    (found,), said = read(tmp_path, START, *lines)
    assert {name: getattr(found, name) for name in expected} == expected
    assert [(p.what, p.evidence.startswith(text)) for p, (_, text) in zip(said, problems, strict=True)] == [
        (what, True) for what, _ in problems
    ]
    assert all(p.severity is RecordingVerdict.DOUBTFUL for p in said)


def planted(ms: dict[str, list[int]]) -> Lines:
    """Milliseconds of the steps of each phase."""
    return [*(step | {"step_ns": MS * t} for phase, times in ms.items() for t in times for step in steps(phase)), END]


WAITED = [*steps(*["skip"] * 5, step_ns=70 * MS), *steps(*["active"] * 5, step_ns=140 * MS, core_wait_ns=50 * MS), END]


@pytest.mark.parametrize(
    ("lines", "cost"),
    [
        # the first step is warm-up; in the phase `warmup` the profiler already works
        (planted({"skip": [900, 70, 72], "wait": [68], "warmup": [110], "active": [118, 120, 122],
                  "after": [70]}),
         (70 * MS, 120 * MS)),
        (WAITED, (70 * MS, 90 * MS)),  # waits for a core are not the profiler's cost
        (planted({"skip": [70, 70], "active": [120] * 5}), None),
        (planted({"skip": [70] * 5, "active": [120] * 2}), None),
        (planted({"skip": [70] * 5, "after": [70] * 5}), None),
    ],
)  # fmt: skip
def test_profiled_steps_are_compared_with_the_steps_without_the_profiler(
    tmp_path: Path, lines: Lines, cost: tuple[int, int] | None
) -> None:
    found = profiler_cost(read(tmp_path, START, *lines)[0] * 2)
    assert (found and (found.unprofiled_step_ns, found.profiled_step_ns)) == cost
    assert found is None or found.ratio == pytest.approx(found.profiled_step_ns / found.unprofiled_step_ns)


def test_ranks_that_were_killed_are_one_finding(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{r}.jsonl", [{"event": "start", "rank": r}]) for r in range(1000)]
    (finding,) = read_training(paths)[1]
    assert finding.evidence.startswith("rank0.jsonl and 999 more: the training was killed, ")


@pytest.mark.parametrize("damaged", [{"rank": "x"}, {"rank": 0, "world_size": []}])
def test_a_rank_whose_first_line_is_damaged_is_a_finding_and_the_others_stay(
    tmp_path: Path, damaged: dict[str, object]
) -> None:
    bad = write(tmp_path / "rank0.jsonl", [{"event": "start"} | damaged, END])
    good = write(tmp_path / "rank1.jsonl", [{"event": "start", "rank": 1}, END])
    ((found,), (finding,)) = read_training([bad, good])
    assert found.rank == 1
    assert finding.evidence.startswith("rank0.jsonl: ")
    assert "\n" not in finding.evidence


def test_the_summary_of_a_training_that_diverged_is_read_back(tmp_path: Path) -> None:
    ((found,), _) = read(tmp_path, START, {"event": "step", "step_ns": 5, "loss": float("nan")})
    again = RankTraining.model_validate_json(found.model_dump_json())
    assert again.last_loss is not None and math.isnan(again.last_loss)


def test_an_unreadable_monitor_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "samples.csv").write_text("")
    devices, findings = read_monitor([tmp_path])
    assert devices == []
    assert len(findings) == 1


def test_a_report_that_knows_no_rank_learns_it_from_the_training_of_that_process() -> None:
    made = Made(source="nsys", path="run/nsys/profile_node0.sqlite", host="n0")
    made.event(0, 10, process=111).event(0, 10, process=222, device=1)
    parts = parts_of(made, window=Window.GPU)
    trainings = [training(0, pid=222, host="n0"), training(1, pid=111, host="n0"), training(2, pid=111, host="n1")]
    named = [name_rank(part, trainings) for part in parts]
    assert [(p.source.pid, p.source.rank, p.devices[0].rank, p.rows.launches[0].rank) for p in named] == [
        (111, 1, 1, 1),
        (222, 0, 0, 0),
    ]


def test_a_run_inside_a_folder_brings_its_training_along(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    (run / "metrics").mkdir(parents=True)
    write(run / "metrics" / "rank0.jsonl", [{"event": "start", "rank": 0, "model": "tiny"}])
    part = part_of(Made(path=str(run / "torch/rank0.json")).event(0, 9), Window.GPU)
    (summary,) = summarise([part.model_copy(update={"run": str(run)})])
    assert [t.model for t in summary.training] == ["tiny"]
    assert len(summary.devices) == 1


def test_a_lost_report_of_one_node_is_noticed_by_what_the_training_says(tmp_path: Path) -> None:
    """The report of node 0 has two processes; metrics/ has four."""
    (tmp_path / "metrics").mkdir()
    for rank in range(4):
        start = {"event": "start", "rank": rank, "world_size": 4, "pid": 100 + rank}
        write(tmp_path / "metrics" / f"rank{rank}.jsonl", [start])
    made = Made(source="nsys", path=str(tmp_path / "nsys" / "profile_node0.sqlite"))
    for rank in (0, 1):
        made.range(0, 500, f"epoch_0-rank_{rank}", process=100 + rank, thread=100 + rank)
        made.collective(10 * rank, 400, size=1 << 20, group="7")
        made.events[-1]["process"] = 100 + rank
    parts = parts_of(made, window=Window.GPU)
    (found,) = summarise([part.model_copy(update={"run": str(tmp_path)}) for part in parts])
    assert (found.world_size, found.ranks) == (4, [0, 1])
    assert "2 of 4 ranks were read; missing: 2, 3" in [f.evidence for f in found.quality.problems]
    (row,) = found.collectives
    assert (row.group_size, row.waiting_ns, row.bus_bandwidth_gb_per_s) == (None, None, None)
    assert {w.field for w in found.quality.withheld} == {
        "collectives.waiting_ns",
        "collectives.bus_bandwidth_gb_per_s",
        "pop",
    }


def test_a_cpu_run_of_zero_says_that_overlap_needs_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    write(tmp_path / "metrics" / "rank0.jsonl", [{"event": "start", "rank": 0, "backend": "gloo"}, END])
    for exercise, findings in ((1, 0), (2, 1)):
        (tmp_path / "run.json").write_text(json.dumps({"job_id": "1", "experiment": {"exercise": exercise}}))
        (found,) = summarise([], run_folders=[tmp_path])
        assert len([f for f in found.quality.problems if "computation hides communication" in f.what]) == findings
        assert found.quality.verdict is RecordingVerdict.GOOD
