"""The slowdown by stragglers: the authors' numbers on their example, an independent simulation's on planted ones."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stragglers.__main__ import lines
from stragglers.measure import measure
from stragglers.result import JobSlowdown

from tests.gallery import gallery
from tests.synthetic.pipelines import (
    Job,
    Op,
    Scale,
    Shape,
    interrupted,
    job,
    long_sequences,
    slow_operation,
    slow_stage,
    slow_worker,
    write_csv,
)

SMALL = Shape(dp=4, pp=4, batches=8, steps=3)
RANKS_64 = Shape(dp=16, pp=4, batches=8, steps=2)
RANKS_128 = Shape(dp=16, pp=8, chunks=2, batches=16, steps=1, overlap=True)


def measured(made: Job, folder: Path) -> JobSlowdown:
    return measure(write_csv(folder / "job.csv", made.rows()))


def said(s: JobSlowdown) -> str:
    return "\n".join(lines(s))


def as_csv(parquet: Path, folder: Path) -> Path:
    table = pytest.importorskip("pyarrow.parquet").read_table(parquet)
    path = folder / "timeline.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.column_names)
        writer.writerows(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return path


@pytest.fixture(params=["trace-ST.parquet", "timeline-ST.json.gz", "csv"])
def example(request: pytest.FixtureRequest, tmp_path: Path) -> JobSlowdown:
    """The authors' example in each of its forms."""
    folder = gallery("straggler-analysis")
    if request.param != "timeline-ST.json.gz":
        pytest.importorskip("pyarrow")
    path = folder / request.param if request.param != "csv" else as_csv(folder / "trace-ST.parquet", tmp_path)
    return measure(path)


def authors() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((gallery("straggler-analysis") / "result-ST.json").read_text())
    return read


def test_the_example_has_the_authors_numbers_in_every_form(example: JobSlowdown) -> None:
    theirs = authors()
    near = 1e-5
    assert example.slowdown == pytest.approx(theirs["blocking_slowdown"], rel=near)
    assert example.by_operation == pytest.approx(theirs["blocking_decompose_by_optype"], rel=near)
    ours = {"stage": example.by_stage, "dp_rank": example.by_dp_rank}
    for what, numbers in ours.items():
        expected = {int(k): v for k, v in theirs[f"blocking_decompose_by_{what}"].items()}
        assert numbers == pytest.approx(expected, rel=near)
    steps = {int(k): v for k, v in theirs["blocking_step_slowdown"].items()}
    assert example.by_step == pytest.approx(steps, rel=near)
    replayed = [*theirs["step_t_nodelay"].values()]
    assert example.step_ns == pytest.approx(1e9 * sum(replayed) / len(replayed), rel=near)
    recorded = [*theirs["step_t_base"].values()]
    assert example.recorded_step_ns == pytest.approx(1e9 * sum(recorded) / len(recorded), rel=2e-3)


def test_the_example_s_last_stage_has_more_work(example: JobSlowdown) -> None:
    assert (example.cause, example.worst_stage) == ("stages", 3)
    assert example.workers[0].stage == 3
    text = said(example)
    assert "1.179 times as slow as without stragglers: 329 ms of a step of 2.17 s" in text
    assert "Stage 3 has more work than the others (forward-compute 1.09, backward-compute 1.07)" in text
    assert "give stage 3 fewer layers" in text


def of_stage(stage: int) -> Callable[[Op], bool]:
    return lambda op: op.stage == stage


def of_kind(kind: str) -> Callable[[Op], bool]:
    return lambda op: op.kind == kind


SHAPES = [  # of the large ones one is shown: the others are as it, or as a small one
    pytest.param(RANKS_64, slow_stage(3, 1.5), id="64 ranks, the last stage"),
    pytest.param(RANKS_64, slow_worker(5, 2, 1.6), id="64 ranks, one worker", marks=pytest.mark.long),
    pytest.param(RANKS_128, slow_worker(9, 6, 1.4), id="128 ranks in two chunks, one worker", marks=pytest.mark.long),
    pytest.param(RANKS_128, slow_stage(0, 1.3), id="128 ranks in two chunks, the first stage", marks=pytest.mark.long),
    pytest.param(Shape(8, 4, 3, 8, 1, no_ops=True), slow_stage(1, 1.4), id="three chunks, with no-ops"),
    pytest.param(Shape(8, 4, 1, 8, 2, overlap=True, no_ops=True), long_sequences(3), id="overlap and no-ops"),
    pytest.param(Shape(8, 1, 1, 4, 2), slow_worker(2, 0, 1.4), id="no pipeline"),
    pytest.param(Shape(1, 4, 1, 8, 2), slow_stage(2, 1.4), id="one pipeline"),
    pytest.param(Shape(2, 2, 2, 4, 2), interrupted(1), id="two stages, where all peers are the same"),
]


@pytest.mark.parametrize(("shape", "scale"), SHAPES)
def test_the_slowdown_is_that_of_an_independent_simulation(shape: Shape, scale: Scale, tmp_path: Path) -> None:
    made = job(shape, scale)
    found = measured(made, tmp_path)
    near = 1e-6
    assert found.slowdown == pytest.approx(made.slowdown(), rel=near)
    assert (found.dp_size, found.pp_size, found.chunks) == (shape.dp, shape.pp, shape.chunks)
    assert found.recorded_step_ns == pytest.approx(1e6 * made.mean_step(), rel=near)
    for stage in {0, shape.pp - 1}:
        assert found.by_stage[stage] == pytest.approx(made.slowdown(of_stage(stage)), rel=near)
    for kind in ("backward-compute", "grads-reduce-scatter", "optimizer-clip-main-grad"):
        assert found.by_operation[kind] == pytest.approx(made.slowdown(of_kind(kind)), rel=near)
    sends = made.slowdown(lambda op: op.kind in ("forward-send", "forward-recv"))
    if shape.pp > 1:
        assert found.by_operation["forward-pp-comm"] == pytest.approx(sends, rel=near)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_stage_with_more_work_is_named(stage: int, tmp_path: Path) -> None:
    found = measured(job(SMALL, slow_stage(stage, 1.4)), tmp_path)
    assert (found.cause, found.worst_stage) == ("stages", stage)
    assert f"Stage {stage} has more work" in said(found)
    assert ("last-pipeline" in said(found)) == (stage == 3)


def test_a_slow_worker_is_named_and_its_stage_is_not_blamed(tmp_path: Path) -> None:
    found = measured(job(RANKS_64, slow_worker(5, 2, 1.6)), tmp_path)
    assert found.cause == "workers"
    assert [(w.dp_rank, w.stage, w.rank) for w in found.slow_workers] == [(5, 2, 37)]
    assert found.workers[0].rank == 37
    assert max(found.by_worker, key=lambda rank: found.by_worker[rank]) == 37
    assert "Rank 37 (stage 2, data-parallel rank 5) takes 60" in said(found)


def test_all_workers_of_a_slow_node_are_named(tmp_path: Path) -> None:
    def node(op: Any, batch: int) -> float:
        return 1.5 if op.dp == 3 and op.kind.endswith("compute") else 1.0

    found = measured(job(Shape(8, 4, steps=2), node), tmp_path)
    assert found.cause == "workers"
    assert {(w.dp_rank, w.stage) for w in found.slow_workers} == {(3, stage) for stage in range(4)}


def test_sequences_of_changing_length_are_recognised_by_forward_and_backward_together(tmp_path: Path) -> None:
    found = measured(job(RANKS_64, long_sequences(1)), tmp_path)
    assert found.cause == "micro-batches"
    assert found.forward_backward_correlation is not None and found.forward_backward_correlation > 0.9
    assert "sequences differ in length" in said(found)


def test_interruptions_anywhere_are_not_taken_for_sequences(tmp_path: Path) -> None:
    found = measured(job(RANKS_64, interrupted(3)), tmp_path)
    assert found.cause == "micro-batches"
    assert found.forward_backward_correlation is not None and abs(found.forward_backward_correlation) < 0.3
    assert "something on the hosts interrupts them" in said(found)


def test_sequences_and_a_long_last_stage_are_both_told(tmp_path: Path) -> None:
    lengths, stage = long_sequences(1, 0.25), slow_stage(3, 1.6)
    found = measured(job(RANKS_64, lambda op, batch: lengths(op, batch) * stage(op, batch)), tmp_path)
    assert found.cause == "micro-batches"
    assert "Also: stage 3 has most work" in said(found)


def test_slow_communication_is_named_by_its_kind(tmp_path: Path) -> None:
    found = measured(job(SMALL, slow_operation("grads-reduce-scatter", 12.0)), tmp_path)
    assert (found.cause, found.cause_operation) == ("operation", "grads-reduce-scatter")
    assert "One communication is slow at times: grads-reduce-scatter" in said(found)


def test_a_job_without_stragglers_has_none(tmp_path: Path) -> None:
    found = measured(job(SMALL), tmp_path)
    assert found.slowdown < 1.03
    assert (found.cause, found.shares) == ("none", None)
    assert said(found).startswith(
        f"No stragglers that count: the job is {found.slowdown:.3f} times as slow as without any, "
    )
    assert "Try: " not in said(found)


def test_a_job_without_sends_and_receives_follows_its_micro_batches(tmp_path: Path) -> None:
    made = job(SMALL, slow_stage(1, 1.5), noise=0.0)
    whole = measured(made, tmp_path)
    rows = [row for row in made.rows() if not row["optype"].endswith(("-send", "-recv"))]
    found = measure(write_csv(tmp_path / "computes.csv", rows))
    assert (found.cause, found.worst_stage) == ("stages", 1)
    assert found.slowdown == pytest.approx(whole.slowdown, rel=0.01)


def test_an_incomplete_step_is_left_out_and_the_others_count(tmp_path: Path) -> None:
    made = job(SMALL, slow_stage(2, 1.5))
    rows = made.rows()
    without = [r for r in rows if not (r["step"] == 11 and (r["dp_rank"], r["stage"]) == (1, 2))]
    found = measure(write_csv(tmp_path / "job.csv", without))
    assert list(found.by_step) == [10, 12]
    assert found.left_out == "1 of 3 steps were left out (step 11: 15 of 16 workers have operations)"
    assert found.left_out in said(found)


def test_steps_with_more_micro_batches_are_replayed_by_their_own_graph(tmp_path: Path) -> None:
    few, many = (job(Shape(2, 4, batches=b, steps=1), slow_stage(3, 1.5)).rows() for b in (4, 8))
    rows = [*few, *({**row, "step": 11} for row in many)]
    found = measure(write_csv(tmp_path / "job.csv", rows))
    assert (list(found.by_step), found.worst_stage) == ([10, 11], 3)


# Long: 128 ranks are replayed as 16 are.
@pytest.mark.long
def test_128_ranks_and_many_steps_are_measured(tmp_path: Path) -> None:
    one = job(RANKS_128, slow_worker(9, 6, 1.4)).rows()
    rows = [{**row, "step": step} for step in range(6) for row in one]
    path = write_csv(tmp_path / "job.csv", rows)
    found = measure(path)
    assert found.workers[0].dp_rank == 9


def test_chrome_events_of_any_worker_columns_give_the_same(tmp_path: Path) -> None:
    made = job(SMALL, slow_worker(1, 2, 1.5))
    expected = measured(made, tmp_path)
    events = [
        {
            "name": row["optype"],
            "ph": "X",
            "pid": f"DP {row['dp_rank']}",
            "tid": f"PP {row['stage']}",
            "ts": 1e6 * row["start_ts"],
            "dur": 1e6 * row["duration"],
            "args": {key: row[key] for key in ("dp_rank", "stage", "step", "mb_id")},
        }
        for row in made.rows()
    ]
    path = tmp_path / "events.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert measure(path).slowdown == pytest.approx(expected.slowdown, rel=1e-6)
