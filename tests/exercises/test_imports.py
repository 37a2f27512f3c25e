"""A training script needs of the harness only what is importable in a container that has nothing but PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "exercises").rglob("*.py"))


def modules_of_the_harness(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "harness")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "harness":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_exercises_import_nothing_of_the_harness_but_what_both_sides_share(path: Path) -> None:
    shared = ("harness.common.", "harness.observe.", "harness.observe")
    assert [name for name in modules_of_the_harness(path) if not name.startswith(shared)] == []
