"""Every number of a Summary is defined where it is declared; docs/metrics.md is written from that."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from harness.analysis import summary
from harness.analysis.summary import SummaryPart
from harness.analysis.summary.described import field_texts
from harness.cli.pages.metrics import summary_parts
from harness.experiment.exercises import EXERCISES

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
PARTS = {
    name: part
    for name, part in vars(summary).items()
    if inspect.isclass(part) and issubclass(part, SummaryPart) and part is not SummaryPart
}

NAMES = (
    "what",
    "LOST",
    "BUSY",
    "CROWDED",
    "NEVER",
    "DIED",
    "GAP",
    "RAN_OUT",
)  # that texts of findings are given


def section(name: str) -> str:
    match = re.search(rf"^##+ {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"docs/metrics.md has no section {name}"
    return match.group(1)


def test_the_page_has_a_section_of_every_class() -> None:
    assert {part.__name__ for part in summary_parts()} == {*PARTS}


@pytest.mark.parametrize("name", PARTS)
def test_every_field_has_its_text_below_it(name: str) -> None:
    texts = field_texts(PARTS[name])
    assert [*texts] == [field for field in PARTS[name].model_fields if field in PARTS[name].__annotations__]
    assert [field for field, text in texts.items() if not text.endswith((".", "…"))] == []


def test_the_schema_describes_every_field_in_the_same_words() -> None:
    schema = summary.Summary.model_json_schema()
    described = schema["$defs"]["Device"]["properties"]
    assert (
        described["idle_ns"]["description"] == "window − U(compute ∪ communication ∪ memory)."
    )  # of its base
    parts = [schema, *schema["$defs"].values()]
    fields = [field for part in parts if part.get("title") in PARTS for field in part["properties"].values()]
    assert len(fields) > 300 and all(field["description"] for field in fields)


def texts_of_findings() -> set[str]:
    """Every text that the analysis gives as `what`: by that name, or first to `Problem.doubt`."""
    found: list[ast.AST] = []
    analysis = Path(inspect.getfile(summary)).parents[1]
    for module in (*analysis.rglob("*.py"), *(analysis.parent / "measure").rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            match node:
                case ast.keyword(arg="what", value=value):
                    found.append(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in NAMES:
                    found.append(value)
                case ast.Call(func=ast.Attribute(attr="doubt"), args=[first, *_]):
                    found.append(first)
    constants = (leaf for value in found for leaf in ast.walk(value) if isinstance(leaf, ast.Constant))
    of_exercises = {cls.gpus_only[0] for cls in EXERCISES.values() if cls.gpus_only}
    return {leaf.value for leaf in constants if isinstance(leaf.value, str)} | of_exercises


def test_every_finding_is_explained_and_no_explanation_outlives_its_finding() -> None:
    rows = section("Problems of a recording").split("|---|---|")[-1]
    assert set(re.findall(r"^\| (.+?) \|", rows, re.MULTILINE)) == texts_of_findings()


def test_every_number_carries_its_unit_in_its_name_or_is_a_count_or_a_share() -> None:
    units = (
        "_ns",
        "_bytes",
        "_s",
        "_fraction",
        "_us",
        "_pct",
        "_watts",
        "_percent",
        "_joules",
        "_byte",
        "_device",
    )
    plain = re.compile(
        r"count|share|ranks?|size|device|pid|stages?|node|kernels|steps|events|samples|collectives|arrivals|points"
        r"|bytes|version|counted|found|excluded|hosts|tokens|loss(es)?|score|instances|microbatches|mean$|parameters"
        r"|parallel$|load_balance|communication$|orchestration|serialisation|transfer$|mfu|hfu|r_squared|length|flops_per_token|with_known_launch"
        r"|predicted$|measured$|low$|high$|ratio$"  # of `unit`
        r"|processes|alone$|every$|error$|gain$|per$|continued$"
    )
    nameless = [
        f"{name}.{field}"
        for name, part in PARTS.items()
        for field, info in part.model_fields.items()
        if re.search(r"\b(int|float)\b", str(info.annotation))
        and not field.endswith(units)
        and not plain.search(field)
    ]
    assert nameless == []
