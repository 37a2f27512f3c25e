"""What the report says of memory snapshots: the rank that matters, the moment, the spread, and damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import Memory, PredictedNumber, Summary
from harness.analysis.summary.problem_texts import RAN_OUT
from harness.common.run_folder.memory_snapshot import CATEGORIES, VERSION
from harness.measure.memory import Category, read_memory
from harness.report.page.inputs import Inputs
from harness.report.page.sections import memory_section
from harness.report.tables import memory as tables
from tests.analysis.memory_files import MB, memory_snapshot, moment, write_memory

ALLOCATOR = {
    "allocated_bytes": 40 * MB, "reserved_bytes": 64 * MB, "inactive_split_bytes": 8 * MB,
    "peak_allocated_bytes": 43 * MB,
}  # fmt: skip


def read(folder: Path, *documents: Any) -> Memory:
    memory, findings = read_memory(write_memory(folder, *documents))
    assert memory is not None and findings == []
    return memory


def test_the_categories_of_the_reader_are_those_of_the_writer() -> None:
    assert Category.__args__ == tuple(CATEGORIES) and VERSION == 1  # type: ignore[attr-defined]


def test_the_rank_with_the_highest_peak_is_shown_and_the_others_counted(tmp_path: Path) -> None:
    memory = read(tmp_path, *(memory_snapshot(rank, (1 + rank) * MB) for rank in range(3)))
    assert memory.peak and memory.timeline and (memory.peak.rank, memory.timeline.rank) == (2, 2)
    assert memory.peak.total_bytes == 13 * MB
    shown = tables.ALLOCATOR.on_page(Summary(memory=memory))
    assert [list(row[:2]) for row in shown.rows] == [["0", "11.0 MB"], ["1", "12.0 MB"], ["2", "13.0 MB"]]


def test_a_rank_that_ran_out_comes_before_a_higher_peak(tmp_path: Path) -> None:
    failure = moment(weights=10 * MB, activations=2 * MB) | {"error": "can't allocate memory"}
    paths = write_memory(tmp_path, memory_snapshot(0, 90 * MB), memory_snapshot(1, 2 * MB, failure=failure))
    memory, findings = read_memory(paths)
    assert memory and memory.failure and memory.failure.rank == 1
    assert [f.what for f in findings] == [RAN_OUT]
    assert findings[0].evidence == (
        "rank 1, step 3, aten.mm.default in model.layers.1.mlp: tensors held 12.0 MB: "
        "weights 10.0 MB, activations 2.00 MB"
    )
    section = memory_section(Summary(memory=memory), Inputs())
    assert section.lead.startswith("The training ran out of memory: rank 1, step 3, forward")
    assert section.lead.endswith("can't allocate memory")


def test_a_gpus_fragmentation_is_what_is_reserved_and_not_used(tmp_path: Path) -> None:
    memory = read(tmp_path, memory_snapshot(0, device="cuda", allocator=ALLOCATOR))
    assert memory.ranks[0].fragmentation_bytes == 24 * MB
    shown = tables.ALLOCATOR.on_page(Summary(memory=memory))
    row = dict(zip(shown.head, shown.rows[0], strict=True))
    assert (row["allocated"], row["reserved"], row["not in use"], row["idle parts"]) == (
        ("40.0 MB", "64.0 MB", "24.0 MB", "8.00 MB")
    )
    assert shown.caption.endswith("is fragmentation") and row["peak with operators"] != row["peak of tensors"]


def test_a_cpus_fragmentation_is_not_known(tmp_path: Path) -> None:
    assert "does not reserve" in tables.ALLOCATOR.on_page(Summary(memory=read(tmp_path, memory_snapshot(0)))).caption


@pytest.mark.parametrize(("where", "activations", "buffers"), [("backward", 7, 1), ("optimizer_step", 5, 3)])
def test_metrics_are_counted_as_the_plan_counts(tmp_path: Path, where: str, activations: int, buffers: int) -> None:
    peak = moment(weights=10 * MB, activations=5 * MB, temporary=2 * MB, buffers=MB) | {"range": where}
    found = metrics_by_name(Summary(memory=read(tmp_path, memory_snapshot(0, peak=peak))))
    assert (found["activations_bytes"], found["buffers_bytes"]) == (activations * MB, buffers * MB)
    assert found["weights_bytes"] == 10 * MB and found["tensor_peak_bytes"] == 18 * MB


def test_the_page_has_the_plan_beside_the_peak_and_a_stack_of_categories(tmp_path: Path) -> None:
    row = PredictedNumber(
        name="weights_bytes", label="weights", unit="bytes", predicted=8 * MB, measured=10 * MB, ratio=1.25
    )
    section = memory_section(Summary(memory=read(tmp_path, memory_snapshot(0)), predictions=[row]), Inputs())
    beside = next(table for table in section.tables if table.caption.startswith("Beside the plan"))
    assert [list(r) for r in beside.rows] == [["weights", "8.00 MB", "10.0 MB", "1.25"]]
    (figure,) = section.figures
    assert [trace["name"] for trace in figure.data] == ["weights", "activations"]  # those that hold anything
    assert {trace["stackgroup"] for trace in figure.data} == {"memory"}
    assert figure.data[1]["y"] == [0, 30, 0.001] and figure.layout["yaxis"]["title"]["text"].endswith("(MB)")


DAMAGED: dict[str, Any] = {
    "no object": "[]",
    "another version": memory_snapshot(0, version=2),
    "a rank below 0": memory_snapshot(-1),
    "bytes that are text": memory_snapshot(0, peak=moment(weights=1) | {"bytes": {"weights": "many"}}),
    "bytes below 0": memory_snapshot(0, peak=moment(weights=-1)),
    "an unknown category": memory_snapshot(0, peak=moment(weights=1) | {"bytes": {"gold": 1}}),
    "lines of several lengths": memory_snapshot(0, times_ns=[0]),
    "times out of order": memory_snapshot(0, times_ns=[3, 2, 1]),
    "too many points": memory_snapshot(0, times_ns=list(range(601))),
    "too many steps": memory_snapshot(0, steps=[{"step": 0, "start_ns": 0}] * 10_001),
    "a name of a megabyte": memory_snapshot(0, peak=moment(weights=1) | {"module": "x" * MB}),
}


@pytest.mark.parametrize("document", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_named_and_the_others_are_read(tmp_path: Path, document: Any) -> None:
    memory, findings = read_memory(write_memory(tmp_path, document, memory_snapshot(1)))
    assert memory is not None and [rank.rank for rank in memory.ranks] == [1]
    assert [f.what for f in findings] == ["a memory snapshot cannot be read"]
    assert findings[0].evidence.startswith("rank0.json: ") and len(findings[0].evidence) < 300


def test_two_files_of_one_rank_are_one(tmp_path: Path) -> None:
    memory, findings = read_memory(write_memory(tmp_path, memory_snapshot(0), memory_snapshot(0)))
    assert memory and len(memory.ranks) == 1
    assert findings[0].evidence == "rank1.json: rank 0 is given twice"


def test_names_of_a_stranger_steer_no_terminal(tmp_path: Path) -> None:
    bad = moment(weights=1) | {"module": "\x1b[31mred\u202e"}
    memory = read(tmp_path, memory_snapshot(0, peak=bad))
    assert memory.peak and memory.peak.module == "[31mred<U+202E>"


def test_recording_in_the_profiled_steps_is_said(tmp_path: Path) -> None:
    _, findings = read_memory(write_memory(tmp_path, memory_snapshot(0, in_profiled_steps=True, complete=False)))
    assert [f.what for f in findings] == [
        "the profiled steps took longer than without --memory-snapshot",
        "the memory snapshot was cut off",
    ]
