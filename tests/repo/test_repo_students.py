"""The files that a student reads and edits show the training, and nothing of how the kit starts it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "exercises").glob("exercise_*/train*.py"))
MOST_LINES = 12
STANDARD = {"__future__", "contextlib", "functools", "itertools", "typing"}


def imports_of(script: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [str(node.module)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_training_script_has_few_imports_and_its_record_of_time_begins_before_any_library(script: Path) -> None:
    nodes = imports_of(script)
    assert sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes) <= MOST_LINES
    names = [name for node in nodes for name in modules(node)]
    assert not {"gc", "sys"} & {*names} and "noqa: E402" not in script.read_text(encoding="utf-8")
    assert next(name for name in names if name not in STANDARD) == "exercises.entry"
