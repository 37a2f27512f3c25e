"""Every number of a Summary is defined where it is declared; docs/metrics.md is written from that."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PARTS as WRITTEN

from harness.analysis import summary
from harness.analysis.summary import SummaryPart, problem_texts
from harness.analysis.summary.base import constant_texts, field_texts, part_texts, parts_of
from harness.cli.main import main
from harness.monitor.samples import COLUMNS

PARTS = {
    name: part
    for name, part in vars(summary).items()
    if inspect.isclass(part) and issubclass(part, SummaryPart) and part is not SummaryPart
}


def test_the_page_has_a_section_of_every_class() -> None:
    assert {part.__name__ for part in parts_of(summary.Summary)} == {*PARTS}


@pytest.mark.parametrize("name", PARTS)
def test_every_field_has_its_text_below_it(name: str) -> None:
    texts = field_texts(PARTS[name])
    assert [*texts] == [field for field in PARTS[name].__struct_fields__ if field in PARTS[name].__annotations__]
    assert [field for field, text in texts.items() if not text.endswith((".", "…"))] == []


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["help", "numbers", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_help_prints_every_field_of_a_table_and_the_page_those_that_need_a_definition(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    listed = printed(capsys)
    for name, part in PARTS.items():
        shown = printed(capsys, name.lower())
        assert f" {name} " in listed and all(f" {field} " in shown for field in part_texts(part))
        assert "](" not in shown
    assert "idle_ns window − U(compute ∪ communication ∪ memory)." in printed(capsys, "Device")
    assert all(f" {column} {text}" in printed(capsys, "monitor") for column, text in COLUMNS.items())
    assert " ".join(problem_texts.CUT_OFF.split()) in printed(capsys, "problems")
    page = WRITTEN["summary"]()
    assert "\n- `idle_ns`: window − U(compute ∪ communication ∪ memory).\n" in page
    assert "\n- `pid`:" not in page and "\n### CodeLocation\n" not in page
    assert main(["help", "numbers", "devise"]) == 2
    assert "there is no table 'devise': did you mean Device?" in capsys.readouterr().err


def sources() -> Iterator[ast.AST]:
    """Every node of the modules that report problems."""
    analysis = Path(inspect.getfile(summary)).parents[1]
    for module in (*analysis.rglob("*.py"), *(analysis.parent / "measure").rglob("*.py")):
        text = module.read_text(encoding="utf-8")
        if "problem" in text.lower():
            yield from ast.walk(ast.parse(text))


def test_every_problem_says_when_it_is_reported_and_is_reported_somewhere() -> None:
    names = {name for name, text in vars(problem_texts).items() if name.isupper() and isinstance(text, str)}
    assert {*constant_texts(problem_texts)} == names and all(constant_texts(problem_texts).values())
    used = {node.attr for node in sources() if isinstance(node, ast.Attribute)}
    used |= {node.id for node in sources() if isinstance(node, ast.Name)}
    assert names - used == set()
