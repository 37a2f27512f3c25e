"""One training, however it is divided: the losses of every parallel layout are those of a single process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from harness.measure.paths import measure_one
from tests.analysis.cpu_operators import misplaced
from tests.exercise_3.megatron_runs import train
from tests.exercises.launching import Run, completed

pytestmark = pytest.mark.train

TOLERANCE = 1e-4
SIZES = ("--seq-length", 32, "--global-batch-size", 4, "--iters", 6, "--learning-rate", 1e-3)
WINDOW = ("--skip", 3, "--wait", 0, "--warmup", 1, "--active", 2, "--profiler", "torch")
Alone = Callable[[str], Run]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """A model in one process."""

    @cache
    def trained(model: str) -> Run:
        return completed(train(tmp_path_factory.mktemp(model) / "run", *SIZES, processes=1, model=model))

    return trained


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks that share every layer, the last two iterations profiled."""
    return completed(train(tmp_path_factory.mktemp("tp") / "run", *SIZES, *WINDOW, "--tp", 2))


def test_losses_do_not_depend_on_tensor_and_sequence_parallelism(alone: Alone, tensor_parallel: Run) -> None:
    losses = alone("tiny-mistral").losses()
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.1  # otherwise the comparisons would hold for a model that does not learn
    assert tensor_parallel.losses() == pytest.approx(losses, abs=TOLERANCE)
    assert tensor_parallel.losses(rank=1) == tensor_parallel.losses(rank=0)


def test_the_operators_of_a_tensor_parallel_run_on_a_cpu_have_their_kinds(tensor_parallel: Run) -> None:
    measured = measure_one([tensor_parallel.folder], "steps")
    assert misplaced(measured) == []
    waiting = [k for k in measured.kernels if k.name == "_ReduceScatterToSequenceParallelRegion"]
    assert waiting, "what is looked for must be there"


# The model, its processes and its layout.
LAYOUTS: dict[str, tuple[str, int, tuple[object, ...]]] = {
    "pipeline": ("tiny-mistral", 2, ("--pp", 2)),
    "interleaved pipeline": ("tiny-mistral", 2, ("--pp", 2, "--vpp", 2)),
    "context parallel": ("tiny-mistral", 2, ("--cp", 2)),
    "data parallel": ("tiny-mistral", 2, ()),
    "recomputed, bf16": ("tiny-mistral", 2, ("--pp", 2, "--mixed-precision", "--activation-checkpointing")),
    "as on the slides: more ranks than key-value heads": ("tiny-mistral", 4, ("--tp", 4)),
    "tensor by pipeline": ("tiny-mistral", 4, ("--tp", 2, "--pp", 2)),
    "embeddings that are tied across stages": ("tiny-llama", 2, ("--pp", 2)),
}


@pytest.mark.long  # one layout is above, and others are trained in test_stage_ranges.py
@pytest.mark.parametrize("name", LAYOUTS)
def test_losses_do_not_depend_on_the_layout(alone: Alone, tmp_path: Path, name: str) -> None:
    model, processes, layout = LAYOUTS[name]
    run = completed(train(tmp_path / "run", *SIZES, *layout, processes=processes, model=model))
    tolerance = 2e-2 if "--mixed-precision" in layout else TOLERANCE
    assert run.losses() == pytest.approx(alone(model).losses(), abs=tolerance)
    assert run.losses(rank=1) == run.losses(rank=0)
