"""What the scripts and the monitor wrote down becomes throughput and MFU, or stays unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.process.kinds import load_rules
from harness.analysis.summary import RankTraining, RecordingVerdict, Window
from harness.measure.jobs import name_rank, summarise
from harness.measure.run_contents import efficiency, profiler_cost
from harness.measure.run_files import read_monitor, read_training
from harness.theory.devices import peak_flops_per_s
from tests.analysis.measuring import measure_trace
from tests.synthetic.columns import Made


def training(rank: int = 0, **more: Any) -> RankTraining:
    facts: dict[str, Any] = {"step_durations_ns": [10**9, 10**9], "median_step_ns": 10**9, "tokens": 2000, "samples": 4}
    return RankTraining(**({"rank": rank, "world_size": 2, "flops_per_token": 6e9} | facts | more))


def test_throughput_is_every_ranks_tokens_over_the_slowest_ranks_time() -> None:
    slow = training(1, step_durations_ns=[2 * 10**9, 2 * 10**9], median_step_ns=2 * 10**9)
    found = efficiency([training(0), slow])
    assert (found.tokens_per_s, found.samples_per_s) == (1000.0, 2.0)
    assert found.model_flops_per_s_per_device == pytest.approx(1000 * 6e9 / 2)


def test_mfu_is_a_share_of_the_peak_at_the_trainings_precision() -> None:
    device = {"device_name": "NVIDIA A100-SXM4-80GB", "dtype": "bfloat16"}
    found = efficiency([training(0, **device), training(1, **device)])
    assert found.mfu == pytest.approx(2000 * 6e9 / 2 / 312e12)
    assert found.peak_source == "the device table"
    assert found.hfu is None


@pytest.mark.parametrize(("dtype", "tflops"), [("float32", 67), ("tf32", 494.5), ("bfloat16", 989), ("float8", 1979)])
def test_the_peak_is_that_of_what_the_training_computed_in(dtype: str, tflops: float) -> None:
    found = efficiency([training(0, device_name="NVIDIA H100 80GB HBM3", dtype=dtype)])
    assert found.peak_flops_per_s == tflops * 1e12


def test_recomputing_the_forward_pass_counts_for_hfu_only() -> None:
    device = {"device_name": "NVIDIA H100 80GB HBM3", "dtype": "bfloat16"}
    found = efficiency([training(0, **device)], recomputes=True)
    assert found.hfu == pytest.approx(found.mfu * 4 / 3)


def test_a_measured_peak_wins_over_the_table() -> None:
    found = efficiency([training(0, device_name="NVIDIA A100", dtype="bfloat16", peak_flops_per_s=250e12)])
    assert (found.peak_flops_per_s, found.peak_source) == (250e12, "measured on the device")


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


END = {"event": "end", "status": "completed"}


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_profiled_steps_count_else_those_after_else_all(tmp_path: Path) -> None:
    def counted(*phases: str) -> tuple[str | None, int]:
        steps = [{"event": "step", "phase": phase, "step_ns": 5} for phase in phases]
        path = write(tmp_path / "rank0.jsonl", [{"event": "start", "rank": 0}, *steps])
        ((found,), _) = read_training([path])
        return found.phase_counted, found.steps_counted

    assert counted("skip", "active", "active", "after") == ("active", 2)
    assert counted("skip", "after") == ("after", 1)
    assert counted("skip", "skip") == (None, 2)


def planted(path: Path, rank: int, ms: dict[str, list[int]]) -> Path:
    """A rank's metrics: milliseconds of the steps of each phase."""
    steps = [{"event": "step", "phase": phase, "step_ns": 10**6 * t} for phase, times in ms.items() for t in times]
    return write(path / f"rank{rank}.jsonl", [{"event": "start", "rank": rank}, *steps, END])


def test_profiled_steps_are_compared_with_the_steps_without_the_profiler_and_without_warm_up(tmp_path: Path) -> None:
    """The first step is warm-up; in the phase `warmup` the profiler already works."""
    phases = {"skip": [900, 70, 72], "wait": [68], "warmup": [110, 111], "active": [118, 120, 122], "after": [70]}
    ranks, _ = read_training([planted(tmp_path, rank, phases) for rank in (0, 1)])
    assert [(r.unprofiled_steps, r.median_unprofiled_step_ns) for r in ranks] == [(4, 70 * 10**6)] * 2
    cost = profiler_cost(ranks)
    assert cost is not None
    assert (cost.unprofiled_step_ns, cost.profiled_step_ns) == (70 * 10**6, 120 * 10**6)
    assert cost.ratio == pytest.approx(120 / 70)


@pytest.mark.parametrize(
    ("phases", "alone", "profiler"),
    [
        (("skip", "wait", "warmup", "active", "after"), 2, 3),
        (("skip", "skip", "after", "after", "after"), 5, None),
        (("warmup", "active", "active", "after", "after"), 5, None),
    ],
)
def test_peak_memory_is_that_before_the_profiler(
    tmp_path: Path, phases: Sequence[str], alone: int, profiler: int | None
) -> None:
    steps = [
        {"event": "step", "phase": phase, "step_ns": 5, "peak_memory_bytes": n} for n, phase in enumerate(phases, 1)
    ]
    ((found,), _) = read_training([write(tmp_path / "rank0.jsonl", [{"event": "start", "rank": 0}, *steps, END])])
    assert (found.peak_memory_bytes, found.profiler_memory_bytes) == (alone, profiler)


def test_waits_for_a_core_are_not_the_profilers_cost(tmp_path: Path) -> None:
    """Other programs take the cores while the profiler works."""
    steps = [
        {"event": "step", "phase": phase, "step_ns": (ms + waits) * 10**6, "core_wait_ns": waits * 10**6}
        for phase, ms, waits in [("skip", 70, 0)] * 5 + [("active", 90, 50)] * 5
    ]
    ranks, _ = read_training([write(tmp_path / "rank0.jsonl", [{"event": "start", "rank": 0}, *steps, END])])
    assert (cost := profiler_cost(ranks)) is not None
    assert (cost.unprofiled_step_ns, cost.profiled_step_ns) == (70 * 10**6, 90 * 10**6)
    assert ranks[0].median_step_ns == 140 * 10**6


@pytest.mark.parametrize(
    "phases",
    [
        {"skip": [70, 70], "active": [120] * 5},
        {"skip": [70] * 5, "active": [120] * 2},
        {"skip": [70] * 5, "after": [70] * 5},
    ],
)
def test_too_few_steps_of_either_kind_say_nothing_of_the_profiler(tmp_path: Path, phases: dict[str, list[int]]) -> None:
    assert profiler_cost(read_training([planted(tmp_path, 0, phases)])[0]) is None


def test_a_training_that_was_killed_has_its_steps_and_no_status(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rank3.jsonl", [{"event": "start", "rank": 3}, {"event": "step", "step_ns": 5, "loss": 2.5}]
    )
    ((found,), findings) = read_training([path])
    assert (found.rank, found.status, found.steps_total, found.last_loss) == (3, None, 1, 2.5)
    assert [(f.what, f.severity) for f in findings] == [
        ("training metrics lack their last line", RecordingVerdict.DOUBTFUL)
    ]


def test_ranks_that_were_killed_are_one_finding(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rank{r}.jsonl", [{"event": "start", "rank": r}]) for r in range(1000)]
    (finding,) = read_training(paths)[1]
    assert finding.evidence.startswith("rank0.jsonl and 999 more: the training was killed, ")


@pytest.mark.parametrize("tokens", ["x", [], float("nan"), 10**400])
def test_a_line_with_a_value_that_is_no_number_is_left_out_and_reported(tmp_path: Path, tokens: object) -> None:
    step = {"event": "step", "step": 0, "unix_ns": 1, "step_ns": 5, "tokens": 7}
    lines: list[dict[str, Any]] = [{"event": "start", "rank": 0}, step, step | {"tokens": tokens}, END]
    path = write(tmp_path / "rank0.jsonl", lines)
    ((found,), (finding,)) = read_training([path])
    assert (found.steps_total, found.tokens) == (1, 7)
    assert (finding.what, finding.evidence) == ("training metrics have unreadable lines", "rank0.jsonl: 1")


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
    step = {"event": "step", "step_ns": 5, "loss": float("nan")}
    path = write(tmp_path / "rank0.jsonl", [{"event": "start", "rank": 0}, step])
    ((found,), _) = read_training([path])
    again = RankTraining.model_validate_json(found.model_dump_json())
    assert again.last_loss is not None
    assert math.isnan(again.last_loss)


def test_the_monitors_energy_is_the_devices_counter(tmp_path: Path) -> None:
    device = {"index": 0, "name": "GPU", "memory_total_bytes": 100}
    meta = {"schema": 1, "host": "n0", "source": "nvml", "period_ns": 10**9, "devices": [device]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    rows = ["unix_ns,device,memory_used_bytes,power_watts,energy_joules"]
    rows += [f"{i * 10**9},0,{10 * i},200,{1000 + 200 * i}" for i in range(3)]
    (tmp_path / "samples.csv").write_text("\n".join(rows) + "\n")
    ((found,), findings) = read_monitor([tmp_path])
    assert (found.node, found.energy_joules, found.energy_from, found.peak_memory_bytes) == ("n0", 400, "counter", 20)
    assert findings == []


def test_an_unreadable_monitor_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "samples.csv").write_text("")
    devices, findings = read_monitor([tmp_path])
    assert devices == []
    assert len(findings) == 1


def test_a_report_that_knows_no_rank_learns_it_from_the_training_of_that_process() -> None:
    made = Made(source="nsys", path="run/nsys/profile_node0.sqlite", host="n0")
    made.event(0, 10, process=111).event(0, 10, process=222, device=1)
    parts = measure_trace(made.trace(), Window.GPU, load_rules())
    trainings = [training(0, pid=222, host="n0"), training(1, pid=111, host="n0"), training(2, pid=111, host="n1")]
    named = [name_rank(part, trainings) for part in parts]
    assert [(p.source.pid, p.source.rank, p.devices[0].rank, p.rows["launches"][0]["rank"]) for p in named] == [
        (111, 1, 1, 1),
        (222, 0, 0, 0),
    ]


def test_a_run_inside_a_folder_brings_its_training_along(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    (run / "metrics").mkdir(parents=True)
    write(run / "metrics" / "rank0.jsonl", [{"event": "start", "rank": 0, "model": "tiny"}])
    part = measure_trace(Made(path=str(run / "torch/rank0.json")).event(0, 9).trace(), Window.GPU, load_rules())[0]
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
    parts = measure_trace(made.trace(), Window.GPU, load_rules())
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
