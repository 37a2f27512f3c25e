"""What stands in no second file: lists of sites and lessons, the program's name, how the kit starts a training."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.replay.attribute.causes import CAUSES

ROOT = Path(__file__).parents[2]
DECLARED = {
    folder: {file.stem for file in (ROOT / "configs" / folder).glob("*.yaml")} for folder in ("sites", "lessons")
}


def literals(tree: ast.AST) -> Iterator[tuple[int, set[object]]]:
    """The line of each list, tuple, set and dictionary, and the constants that stand in it."""
    for node in ast.walk(tree):
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items) | ast.Dict(keys=items):
                yield node.lineno, {each.value for each in items if isinstance(each, ast.Constant)}


def own_lists(text: str, folder: str) -> list[int]:
    """The lines at which a file has most of what is declared in a folder of configs/."""
    names = DECLARED[folder]
    return [line for line, constants in literals(ast.parse(text)) if 2 * len(constants & names) > len(names)]


@pytest.mark.parametrize("folder", DECLARED)
def test_no_test_has_a_list_that_a_new_site_or_lesson_makes_wrong(folder: str) -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    found = {str(file.relative_to(ROOT)): own_lists(file.read_text(encoding="utf-8"), folder) for file in files}
    assert {name: lines for name, lines in found.items() if lines} == {}, f"read configs/{folder}"


@pytest.mark.parametrize("folder", DECLARED)
def test_such_a_list_is_found(folder: str) -> None:
    names = sorted(DECLARED[folder])
    assert own_lists(f"FEW = {names[:2]}\nALL = {names}\n", folder) == [2]


def test_every_cause_has_its_own_label() -> None:
    labels = Counter(cause.label for cause in CAUSES.values())
    assert [label for label, count in labels.items() if count > 1] == []


# ---- The name of the program: `slurm.sh` in a checkout, `training-traces` elsewhere


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


# ---- The files that a student reads and edits show the training, and nothing of how the kit starts it


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
