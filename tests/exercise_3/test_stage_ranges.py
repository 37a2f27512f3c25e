"""What a profile of exercise 3 shows: each micro-batch of each stage, each transfer, in the order of 1F1B."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.measure.paths import measure_one
from tests.analysis.cpu_operators import misplaced
from tests.exercise_3.megatron_runs import train
from tests.exercises.launching import Run, completed

pytestmark = pytest.mark.train

MICROBATCHES = 4
WINDOW = ("--skip", 1, "--wait", 0, "--warmup", 1, "--active", 2, "--profiler", "torch")
SIZES = ("--seq-length", 32, "--global-batch-size", MICROBATCHES, *WINDOW)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two stages."""
    return completed(train(tmp_path_factory.mktemp("pp") / "run", *SIZES, "--pp", 2))


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two stages of two chunks each."""
    return completed(train(tmp_path_factory.mktemp("vpp") / "run", *SIZES, "--pp", 2, "--vpp", 2))


def schedule(run: Run, rank: int) -> list[str]:
    """Forwards and backwards of the first recorded iteration, in order: F0 F1 B0 …"""
    iteration = run.spans(rank, "iteration_")[0]
    steps = [s for s in run.spans(rank) if re.match("(forward|backward) mb", s.name) and iteration.holds(s)]
    return [s.name[0].upper() + re.findall(r"mb(\d+)", s.name)[0] for s in steps]


def test_the_operators_of_a_pipeline_on_a_cpu_have_their_kinds(pipeline: Run) -> None:
    assert misplaced(measure_one([pipeline.folder], "steps")) == []


def test_the_schedule_is_one_forward_one_backward(pipeline: Run) -> None:
    assert schedule(pipeline, 0) == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]
    assert schedule(pipeline, 1) == ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"]


def test_a_stage_waits_for_what_it_computes_with(pipeline: Run) -> None:
    """So the bubble is at least that of theory."""
    for iteration in range(2):
        spans = [
            [s for s in pipeline.spans(rank) if pipeline.spans(rank, "iteration_")[iteration].holds(s)]
            for rank in (0, 1)
        ]
        first, last = ({s.name.rpartition(" ")[0]: s for s in own if " mb" in s.name} for own in spans)
        assert len(first) == len(last) == 2 * MICROBATCHES
        for k in range(MICROBATCHES):
            assert first[f"forward mb{k}"].end <= last[f"forward mb{k}"].start
            assert last[f"backward mb{k}"].end <= first[f"backward mb{k}"].start


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_one_stage(pipeline: Run, rank: int) -> None:
    names = {span.name for span in pipeline.spans(rank) if " mb" in span.name}
    wanted = {f"{way} mb{k} stage{rank}" for way in ("forward", "backward") for k in range(MICROBATCHES)}
    assert names == wanted


@pytest.mark.parametrize("rank", [0, 1])
def test_chunk_c_of_rank_r_is_stage_c_times_pp_plus_r(interleaved: Run, rank: int) -> None:
    names = {span.name for span in interleaved.spans(rank) if " mb" in span.name}
    assert names == {
        f"{way} mb{k} stage{stage}"
        for way in ("forward", "backward")
        for k in range(MICROBATCHES)
        for stage in (rank, 2 + rank)
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_work_is_never_inside_a_transfer_nor_a_transfer_inside_work(pipeline: Run, rank: int) -> None:
    transfers = [s for s in pipeline.spans(rank) if re.match("(send|recv)_", s.name)]
    work = [s for s in pipeline.spans(rank) if " mb" in s.name]
    assert transfers
    assert not [(a.name, b.name) for a in transfers for b in work if a.start < b.end and b.start < a.end]


def test_data_is_loaded_once_per_micro_batch_inside_its_forward(pipeline: Run) -> None:
    loads = pipeline.spans(0, "DataLoad batch ")
    assert [span.name for span in loads] == [f"DataLoad batch {n}" for n in range(8, 16)]
    forwards = pipeline.spans(0, "forward mb")
    assert all(forward.holds(load) for forward, load in zip(forwards, loads, strict=True))


@pytest.mark.parametrize("name", ["zero_grad", "optimizer_step", "scheduler_step"])
def test_each_iteration_has_its_other_parts_once(pipeline: Run, name: str) -> None:
    iterations = pipeline.spans(1, "iteration_")
    parts = [span for span in pipeline.spans(1) if span.name == name]
    assert len(parts) == len(iterations)
    assert all(iteration.holds(part) for iteration, part in zip(iterations, parts, strict=True))


def test_interleaving_waits_are_named_after_what_they_wait_for(interleaved: Run) -> None:
    names = {span.name for rank in (0, 1) for span in interleaved.spans(rank, "recv_")}
    assert {"recv_forward wait", "recv_backward wait"} <= names


def test_gradients_are_reduced_beside_backward(tmp_path: Path) -> None:
    run = completed(train(tmp_path / "run", *SIZES))
    lasts, messages = run.spans(0, "backward mb1 "), run.spans(0, "gloo:")  # two replicas: two micro-batches each
    assert len(lasts) == 2
    assert [message for last in lasts for message in messages if message.start < last.end and last.start < message.end]
