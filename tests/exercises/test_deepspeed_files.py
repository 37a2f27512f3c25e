"""The DeepSpeed files that are checked in are the ones that the harness makes, and each is explained."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import Any

from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed import as_json, deepspeed_config

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "deepspeed"
MIXED = {"mixed_precision": True}
PRECISIONS: dict[str, dict[str, bool]] = {
    "full-precision": {},
    "mixed-precision": MIXED,
    "mixed-precision-activation-checkpointing": {**MIXED, "activation_checkpointing": True},
}
MESSAGES: dict[str, dict[str, bool]] = {
    "": {},
    "-no-overlap": {"overlap_comm": False},
    "-heavy-comm": {"heavy_comm": True},
}


def made() -> dict[str, dict[str, Any]]:
    """Every valid combination, by its path below configs/deepspeed; batch sizes are `auto`."""
    found = {}
    for stage, precision, suffix in product((1, 2, 3), PRECISIONS, MESSAGES):
        asked = DeepSpeed.model_validate({"zero_stage": stage, **PRECISIONS[precision], **MESSAGES[suffix]})
        if not any(asked.broken_rules()):
            found[f"stage-{stage}/{precision}{suffix}.json"] = deepspeed_config(asked, auto_batch=True)
    return found


def test_what_is_checked_in_is_what_the_harness_makes() -> None:
    """After a deliberate change: HARNESS_WRITE_GOLDEN=1 pytest tests/exercises/test_deepspeed_files.py."""
    texts = {name: as_json(config) for name, config in made().items()}
    if os.environ.get("HARNESS_WRITE_GOLDEN"):
        for name, text in texts.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    assert {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.json")} == texts


def _keys(value: dict[str, Any], prefix: str = "") -> set[str]:
    below = [_keys(v, f"{prefix}{k}.") for k, v in value.items() if isinstance(v, dict)]
    return {f"{prefix}{k}" for k, v in value.items() if not isinstance(v, dict)}.union(*below)


def test_every_key_is_explained() -> None:
    explained = (FOLDER / "EXPLAINED.md").read_text()
    everything = [*made().values(), deepspeed_config(DeepSpeed(hpz_partition=4))]
    keys = {key for config in everything for key in _keys(config)}
    assert len(keys) > 15
    assert [key for key in sorted(keys) if f"`{key.split('.')[-1]}`" not in explained] == []
