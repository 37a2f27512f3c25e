"""A text for people names the command that they have: `slurm.sh` in a checkout, `training-traces` elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Where both names are, and where a slide's command becomes the one that is typed here.
NAMES_IT = {"harness/common/paths.py", "harness/study/lessons.py"}


def texts(tree: ast.AST) -> Iterator[ast.Constant]:
    """The texts of a module but its docstrings, which only a reader of the code sees."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def test_no_text_of_the_harness_names_the_checkouts_command_itself() -> None:
    wrong = []
    for path in sorted((ROOT / "harness").rglob("*.py")):
        name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if "slurm.sh" in source and name not in NAMES_IT:
            wrong += [f"{name}:{text.lineno}" for text in texts(ast.parse(source)) if "slurm.sh" in str(text.value)]
    assert wrong == [], "PROGRAM and COMMAND of harness/common/paths.py"
