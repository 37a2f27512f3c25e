"""Exercise 2 and --fsdp really shard: traces show each way's communication, and none changes what is learnt."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.common.model.model_config import Sharding
from harness.measure.paths import measure_one
from harness.theory.communication import traffic_per_step
from tests.analysis.cpu_operators import misplaced
from tests.exercises.launching import Collective, Run, collectives

pytestmark = pytest.mark.train

STEPS = 3  # of the window in conftest.py


def counted(run: Run) -> Counter[tuple[str, str, int | None]]:
    """(range, kind, group size) of rank 0's collectives in the profiled steps."""
    return Counter((_range(call), call.kind, call.group_size) for call in collectives(run.folder, 0))


def _range(call: Collective) -> str:
    named = [name for name in ("forward", "backward", "optimizer_step") if name in call.within]
    return named[0] if named else "elsewhere"


def test_stage_2_reduces_gradients_and_gathers_only_updated_parameters(zero2: Run) -> None:
    found = counted(zero2)
    reductions = found["backward", "all_reduce", None] + found["backward", "reduce_scatter", 2]
    assert reductions >= STEPS
    assert found["optimizer_step", "all_gather", 2] >= STEPS
    assert not [key for key in found if key[0] in ("forward", "backward") and key[1] == "all_gather"]


def test_stage_3_gathers_parameters_in_forward_and_again_in_backward(zero3: Run) -> None:
    found = counted(zero3)
    layers = 4
    assert found["forward", "all_gather", 2] >= layers * STEPS
    assert found["backward", "all_gather", 2] >= layers * STEPS
    assert found["backward", "reduce_scatter", 2] > STEPS, "gradients must take several buckets"
    assert not [key for key in found if key[0] == "optimizer_step" and key[1] == "all_gather"]


def test_fsdp_gathers_a_layer_at_a_time_and_reduces_it_when_its_gradients_are_there(fsdp: Run) -> None:
    units = 4 + 1  # the layers, and what is in none
    assert counted(fsdp) == {
        ("forward", "all_gather", 2): units * STEPS,
        ("backward", "all_gather", 2): units * STEPS,
        ("backward", "reduce_scatter", 2): units * STEPS,
        ("optimizer_step", "all_reduce", None): STEPS,  # the norm of all gradients, to clip them
    }


@pytest.mark.parametrize(
    ("run", "sharding", "tolerance"),
    [
        ("ddp", "none", 0.01),
        ("fsdp", "fsdp", 0.01),
        ("zero1", "zero1", 0.01),
        ("zero2", "zero2", 0.01),
        ("zero3", "zero3", 0.2),
    ],
)
def test_bytes_per_step_are_those_of_theory(
    run: str, sharding: Sharding, tolerance: float, request: pytest.FixtureRequest
) -> None:
    """Stage 3 keeps some layers between the passes or gathers them again: the tolerance is larger."""
    finished: Run = request.getfixturevalue(run)
    found: Counter[str] = Counter()
    for call in collectives(finished.folder, 0):
        found[_range(call)] += call.elements * 4 // STEPS
    expected: Counter[str] = Counter()
    for traffic in traffic_per_step(finished.lines(0)[0]["parameters"], 2, sharding=sharding):
        expected[traffic.part] += round(traffic.message_bytes)
    assert {part: found[part] for part in expected} == pytest.approx(dict(expected), rel=tolerance)


def test_every_stage_learns_what_ddp_learns(ddp: Run, fsdp: Run, zero1: Run, zero2: Run, zero3: Run) -> None:
    expected = ddp.mean_losses()
    assert expected[0] - expected[-1] > 0.1, "the comparison needs a loss that moves"
    for run in (fsdp, zero1, zero2, zero3):
        assert run.mean_losses() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", ["ddp", "zero2", "zero3"])
def test_the_operators_of_a_run_on_a_cpu_have_their_kinds(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    assert misplaced(measure_one([run.folder], "steps")) == []


def test_every_ranks_tokens_are_its_own(zero3: Run) -> None:
    starts = [zero3.lines(rank)[0] for rank in (0, 1)]
    for rank, start in enumerate(starts):
        assert start["world_size"] == 2
        assert {step["tokens"] for step in zero3.steps(rank)} == {start["micro_batch_size"] * start["seq_length"]}
    losses = [[step["loss"] for step in zero3.steps(rank)] for rank in (0, 1)]
    assert losses[0] != losses[1], "ranks must work on different examples"


def test_deepspeed_marks_a_range_by_pytorch_and_not_by_an_nvtx_package_that_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DeepSpeed's class for CUDA, without a GPU: with nvtx 0.2.11 its first range is an AttributeError otherwise."""
    deepspeed = pytest.importorskip("deepspeed")
    cuda_accelerator = pytest.importorskip("deepspeed.accelerator.cuda_accelerator")
    real_accelerator = pytest.importorskip("deepspeed.accelerator.real_accelerator")
    instrument_w_nvtx = pytest.importorskip("deepspeed.utils.nvtx").instrument_w_nvtx
    import torch

    from exercises.exercise_2_DeepSpeed import zero

    assert not hasattr(cuda_accelerator.nvtx.get_domain("a domain"), "push_range")
    monkeypatch.setattr(real_accelerator, "ds_accelerator", cuda_accelerator.CUDA_Accelerator())
    told: list[str | None] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", told.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: told.append(None))
    zero.mark_by_pytorch()
    assert deepspeed.get_accelerator().device_name() == "cuda"
    assert instrument_w_nvtx(lambda: "its result")() == "its result"
    assert [told[0] is not None, *told[1:]] == [True, None]
