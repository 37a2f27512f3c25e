"""The DeepSpeed files that are checked in are the ones that the harness makes, and each is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed import as_json, deepspeed_config
from tests.exercises.deepspeed_files import checked_in

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "deepspeed"


def test_what_is_checked_in_is_what_the_harness_makes() -> None:
    made = {str(name): as_json(config) for name, config in checked_in()}
    kept = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.json")}
    assert kept == made, "run `python -m tests.exercises.deepspeed_files --write configs/deepspeed`"


def test_every_valid_combination_is_there() -> None:
    names = {str(name) for name, _ in checked_in()}
    assert len(names) == 21
    assert not any("full-precision-heavy" in name or "checkpointing-heavy" in name for name in names)


def _keys(value: dict[str, Any], prefix: str = "") -> set[str]:
    below = [_keys(v, f"{prefix}{k}.") for k, v in value.items() if isinstance(v, dict)]
    return {f"{prefix}{k}" for k, v in value.items() if not isinstance(v, dict)}.union(*below)


def test_every_key_is_explained() -> None:
    explained = (FOLDER / "EXPLAINED.md").read_text()
    everything = [config for _, config in checked_in()] + [deepspeed_config(DeepSpeed(hpz_partition=4))]
    keys = {key for config in everything for key in _keys(config)}
    assert len(keys) > 15
    assert [key for key in sorted(keys) if f"`{key.split('.')[-1]}`" not in explained] == []


def test_no_overlap_changes_overlap_and_nothing_else() -> None:
    usual, without = deepspeed_config(DeepSpeed()), deepspeed_config(DeepSpeed(overlap_comm=False))
    assert without["zero_optimization"] | {"overlap_comm": True} == usual["zero_optimization"]


def test_hpz_of_one_rank_is_none_and_of_two_it_is_asked_for() -> None:
    zero = [deepspeed_config(DeepSpeed(hpz_partition=ranks))["zero_optimization"] for ranks in (1, 2)]
    assert [each.get("zero_hpz_partition_size") for each in zero] == [None, 2]


def test_the_workshops_values() -> None:
    zero = deepspeed_config(DeepSpeed(heavy_comm=True, mixed_precision=True))["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["stage3_prefetch_bucket_size"]) == (500_000_000, 50_000_000)
    zero = deepspeed_config(DeepSpeed(overlap_comm=False))["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["stage3_prefetch_bucket_size"]) == (100_000_000, 100_000_000)
    assert zero["stage3_param_persistence_threshold"] == 1_000_000
    assert zero["stage3_max_live_parameters"] == zero["stage3_max_reuse_distance"] == 1_000_000_000
