"""What theory expects stands beside what was measured, under the same kind of name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import Efficiency, RankSteps, RankTraining, Steps, Summary
from harness.compare.summaries import compare
from harness.experiment.exercises import EXERCISES, Experiment, as_recorded, experiment_of, read_experiment

PARAMETERS = 1000


def run(training: dict[str, Any] | None = None, **asked: Any) -> dict[str, float]:
    """The metrics of a run of 4 ranks."""
    first = RankTraining(**({"rank": 0, "parameters": PARAMETERS, "gradient_accumulation_steps": 1} | (training or {})))
    known = experiment_of(asked or None)
    theory = known.for_theory if known else None
    return metrics_by_name(Summary(world_size=4, training=[first], experiment=asked, run={"theory": theory}))


@pytest.mark.parametrize(
    ("asked", "training", "expected"),
    [
        ({"exercise": 1, "mixed_precision": True}, {}, {"all_reduce": 4000}),
        ({"exercise": 1}, {"gradient_accumulation_steps": 16}, {"all_reduce": 250}),
        ({"exercise": 2, "zero_stage": 2, "mixed_precision": True}, {}, {"all_reduce": 2000, "all_gather": 2000}),
        ({"exercise": 2, "zero_stage": 1}, {"gradient_accumulation_steps": 4},
         {"all_reduce": 1000, "all_gather": 1000}),
        ({"exercise": 2, "zero_stage": 3, "mixed_precision": True}, {"gradient_accumulation_steps": 4},
         {"all_gather": 4000, "reduce_scatter": 2000}),
        ({"exercise": 3}, {}, {}),
    ],
)  # fmt: skip
def test_bytes_per_micro_batch_are_predicted(asked: Any, training: Any, expected: dict[str, float]) -> None:
    found = {name: value for name, value in run(training, **asked).items() if name.startswith("expected_")}
    found.pop("expected_state_bytes", None)
    assert found == {f"expected_{kind}_bytes": size for kind, size in expected.items()}


def test_the_models_state_is_predicted_with_hpzs_second_copy() -> None:
    assert run(exercise=1)["expected_state_bytes"] == 16 * PARAMETERS
    sharded: dict[str, Any] = {"exercise": 2, "zero_stage": 3, "mixed_precision": True}
    assert run(**sharded, hpz_partition=1)["expected_state_bytes"] == 16 * PARAMETERS / 4
    over_all = run(**sharded, hpz_partition=4)["expected_state_bytes"]
    assert over_all == 16 * PARAMETERS / 4 + 2 * PARAMETERS / 4, "DeepSpeed copies the partition itself, too"
    assert run(**sharded, hpz_partition=2)["expected_state_bytes"] == 16 * PARAMETERS / 4 + 2 * PARAMETERS / 2


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("torch.bfloat16", 2), ("float64", 8), ("float8_e4m3fn", 1)]
)
def test_parameters_take_the_bytes_of_their_type(dtype: str, size: int) -> None:
    assert run({"dtype": dtype})["parameter_bytes"] == size * PARAMETERS


def test_a_step_is_the_same_median_in_metrics_and_in_comparisons() -> None:
    steps = Steps(source="made", per_rank=[RankSteps(rank=0, durations_ns=[10, 20, 30, 100])])
    summary = Summary(steps=steps, world_size=4, efficiency=Efficiency(tokens_per_s=400.0))
    compared = compare(summary, summary, ("a", "b")).step_time
    assert compared is not None
    assert metrics_by_name(summary)["step_ns"] == compared.a.value == 25
    assert metrics_by_name(summary)["tokens_per_s_per_rank"] == 100


@pytest.mark.parametrize("cls", EXERCISES.values())
def test_a_summary_says_what_was_asked_word_for_word_as_the_record_does(cls: type[Experiment]) -> None:
    """Also for an older or a newer record; a field that no class describes is kept."""
    recorded = cls.model_validate({"nodes": 2}).model_dump(mode="json")
    older = {"exercise": recorded["exercise"], "nodes": 2}
    for kept, ours in ((recorded, True), (older, True), (recorded | {"newer": 1}, False), ({"exercise": 99}, False)):
        read = as_recorded(read_experiment(kept))
        assert json.dumps(Summary(experiment=read).model_dump()["experiment"]) == json.dumps(kept)
        assert isinstance(experiment_of(read), cls) == ours
