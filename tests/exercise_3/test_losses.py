"""One training, however it is divided: the losses of every parallel layout are those of a single process."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.measure.paths import measure_one
from tests.analysis.cpu_operators import misplaced
from tests.exercise_3.megatron_runs import Run, completed, train

pytestmark = pytest.mark.train

TOLERANCE = 1e-4
SIZES = ("--seq-length", 32, "--global-batch-size", 4, "--iters", 6, "--learning-rate", 1e-3)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """tiny-mistral in one process."""
    return completed(train(tmp_path_factory.mktemp("alone") / "run", *SIZES, processes=1))


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks that share every layer, the last two iterations profiled."""
    window = ("--skip", 3, "--wait", 0, "--warmup", 1, "--active", 2, "--profiler", "torch")
    return completed(train(tmp_path_factory.mktemp("tp") / "run", *SIZES, *window, "--tp", 2))


@pytest.fixture(scope="module")
def mixture_alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """tiny-mixtral in one process."""
    folder = tmp_path_factory.mktemp("mixture") / "run"
    return completed(train(folder, *SIZES, processes=1, model="tiny-mixtral"))


def test_one_process_learns(alone: Run) -> None:
    losses = alone.losses()
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.1  # otherwise the comparisons below would hold for a model that does not learn


def test_losses_do_not_depend_on_tensor_and_sequence_parallelism(alone: Run, tensor_parallel: Run) -> None:
    assert tensor_parallel.losses() == pytest.approx(alone.losses(), abs=TOLERANCE)
    assert tensor_parallel.losses(rank=1) == tensor_parallel.losses(rank=0)


def test_the_operators_of_a_tensor_parallel_run_on_a_cpu_have_their_kinds(tensor_parallel: Run) -> None:
    measured = measure_one([tensor_parallel.folder], "steps")
    assert misplaced(measured) == []
    waiting = [k for k in measured.kernels if k.name == "_ReduceScatterToSequenceParallelRegion"]
    assert waiting, "what is looked for must be there"


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(("--pp", 2), id="pipeline", marks=pytest.mark.long),
        # its order is in test_stage_ranges.py
        pytest.param(("--pp", 2, "--vpp", 2), id="interleaved pipeline", marks=pytest.mark.long),
        pytest.param(("--cp", 2), id="context parallel", marks=pytest.mark.long),  # on no slide
        # both trained in test_stage_ranges.py, too
        pytest.param((), id="data parallel, distributed optimizer, overlap", marks=pytest.mark.long),
        pytest.param(
            ("--no-distributed-optimizer", "--no-overlap"), id="data parallel, neither", marks=pytest.mark.long
        ),
        pytest.param(
            ("--pp", 2, "--mixed-precision", "--activation-checkpointing"),
            id="recomputed, bf16",
            marks=pytest.mark.long,
        ),
    ],
)
def test_losses_do_not_depend_on_the_layout(alone: Run, tmp_path: Path, layout: tuple[object, ...]) -> None:
    run = completed(train(tmp_path / "run", *SIZES, *layout))
    tolerance = 2e-2 if "--mixed-precision" in layout else TOLERANCE
    assert run.losses() == pytest.approx(alone.losses(), abs=tolerance)
    assert run.losses(rank=1) == run.losses(rank=0)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(("--tp", 4), id="as on the slides: more ranks than key-value heads"),
        pytest.param(("--tp", 2, "--pp", 2), id="tensor by pipeline"),
    ],
)
@pytest.mark.long
def test_losses_of_four_processes_are_those_of_one(alone: Run, tmp_path: Path, layout: tuple[object, ...]) -> None:
    run = completed(train(tmp_path / "run", *SIZES, *layout, processes=4))
    assert run.losses() == pytest.approx(alone.losses(), abs=TOLERANCE)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(("--ep", 2), id="expert parallel", marks=pytest.mark.long),  # on no slide
        pytest.param(("--tp", 2), id="tensor parallel", marks=pytest.mark.long),
    ],
)
def test_losses_of_a_mixture_do_not_depend_on_the_layout(
    mixture_alone: Run, tmp_path: Path, layout: tuple[object, ...]
) -> None:
    run = completed(train(tmp_path / "run", *SIZES, *layout, model="tiny-mixtral"))
    assert run.losses() == pytest.approx(mixture_alone.losses(), abs=TOLERANCE)


@pytest.mark.long  # another model, trained twice
def test_tied_embeddings_stay_tied_across_stages(tmp_path: Path) -> None:
    alone = completed(train(tmp_path / "alone", *SIZES, processes=1, model="tiny-llama"))
    divided = completed(train(tmp_path / "divided", *SIZES, "--pp", 2, model="tiny-llama"))
    assert divided.losses() == pytest.approx(alone.losses(), abs=TOLERANCE)
