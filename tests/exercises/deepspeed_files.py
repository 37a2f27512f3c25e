"""The DeepSpeed files of configs/deepspeed, written: `python -m tests.exercises.deepspeed_files --write FOLDER`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed import as_json, deepspeed_config


def checked_in() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every valid combination, with its path below configs/deepspeed; batch sizes are `auto`."""
    mixed = {"mixed_precision": True}
    precisions = {"full-precision": {}, "mixed-precision": mixed}
    precisions["mixed-precision-activation-checkpointing"] = mixed | {"activation_checkpointing": True}
    messages = {"": {}, "-no-overlap": {"overlap_comm": False}, "-heavy-comm": {"heavy_comm": True}}
    for stage, precision, suffix in product((1, 2, 3), precisions, messages):
        fields = {"zero_stage": stage} | precisions[precision] | messages[suffix]
        asked = DeepSpeed.model_validate(fields)
        if not any(asked.broken_rules()):
            yield Path(f"stage-{stage}/{precision}{suffix}.json"), deepspeed_config(asked, auto_batch=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write every valid DeepSpeed configuration of exercise 2.")
    parser.add_argument("--write", type=Path, required=True, metavar="FOLDER", help="configs/deepspeed")
    folder: Path = parser.parse_args().write
    for name, config in checked_in():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_json(config), encoding="utf-8")


if __name__ == "__main__":
    main()
