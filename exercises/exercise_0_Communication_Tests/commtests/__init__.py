"""Exercise 0: what the links of this allocation are, and how fast a collective runs over them.

The topology part needs Python's standard library only, the benchmark torch and numpy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.common.system.files import write_whole_text

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
SCHEMA = 2  # of every file in comm/


class EarlierVersionError(Exception):
    """A file has the form of an earlier version; the message says so, as a sentence."""


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write the whole file or nothing: a killed job leaves the file as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole_text(path, json.dumps({"schema": SCHEMA, **data}, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote. Raises EarlierVersionError."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data.get("schema") != SCHEMA:
        raise EarlierVersionError(f"{path} was written by an earlier version of these tests; run them again")
    return data
