"""The files that a student reads and edits show the training, and nothing of how the kit starts it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "exercises").glob("exercise_*/train*.py"))
MOST_LINES = 12


def imports_of(script: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(script.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [str(node.module)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]


def test_every_exercise_with_a_training_is_looked_at() -> None:
    assert [f"{script.parent.name[9:10]} {script.name}" for script in SCRIPTS] == [
        "1 train.py",
        "1 train_todo.py",
        "2 train.py",
        "3 train.py",
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_training_script_has_few_imports_and_no_trick_of_the_kit(script: Path) -> None:
    nodes = imports_of(script)
    assert sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes) <= MOST_LINES
    assert not {"gc", "sys"} & {name for node in nodes for name in modules(node)}
    assert "noqa: E402" not in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_record_of_the_jobs_time_begins_before_any_library_is_imported(script: Path) -> None:
    standard = {"__future__", "contextlib", "functools", "itertools", "typing"}
    others = [name for node in imports_of(script) for name in modules(node) if name not in standard]
    assert others[0] == "exercises.entry"
