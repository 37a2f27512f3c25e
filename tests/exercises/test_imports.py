"""A training script needs of the harness only what is importable in a container that has nothing but PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPORT = re.compile(r"^\s*(?:from|import)\s+(harness[\w.]*)(?:\s+import\s+(\w+))?", re.MULTILINE)
SCRIPTS = sorted((ROOT / "exercises").rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_exercises_import_nothing_of_the_harness_but_what_both_sides_share(path: Path) -> None:
    imported = [".".join(filter(None, found)) for found in IMPORT.findall(path.read_text(encoding="utf-8"))]
    assert [name for name in imported if not name.startswith(("harness.common.", "harness.observe."))] == []
