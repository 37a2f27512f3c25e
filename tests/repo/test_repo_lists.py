"""What is declared once: no test repeats the list of the sites or of the lessons, and two causes look different."""

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


def test_every_cause_has_its_own_label_and_every_label_of_a_bar_its_own_color() -> None:
    labels = Counter(cause.label for cause in CAUSES.values())
    assert [label for label, count in labels.items() if count > 1] == []
    shown = {(cause.short or cause.label, cause.color) for cause in CAUSES.values()}
    assert len({label for label, _ in shown}) == len({color for _, color in shown}) == len(shown)
