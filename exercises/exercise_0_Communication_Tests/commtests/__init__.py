"""Exercise 0: what the links of this allocation are, and how fast a collective runs over them.

The topology part needs Python's standard library only, the benchmark torch and numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.common.files import write_whole_text

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write the whole file or nothing: a killed job leaves the file as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
