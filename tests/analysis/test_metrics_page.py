"""docs/metrics.md defines every field of the Summary, and only fields that exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from harness.analysis import summary
from harness.analysis.summary import Part

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
PARTS = {
    name: part
    for name, part in vars(summary).items()
    if inspect.isclass(part) and issubclass(part, Part) and part is not Part
}


def section(name: str) -> str:
    match = re.search(rf"^##+ {name}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"docs/metrics.md has no section {name}"
    return match.group(1)


@pytest.mark.parametrize("name", PARTS)
def test_every_field_is_defined(name):
    missing = [field for field in PARTS[name].model_fields if f"`{field}`" not in section(name)]
    assert missing == []


@pytest.mark.parametrize("name", PARTS)
def test_no_definition_outlives_its_field(name):
    rows = re.findall(r"^\| `(\w+)` \|", section(name), re.MULTILINE)
    assert [row for row in rows if row not in PARTS[name].model_fields] == []


def test_every_number_carries_its_unit_in_its_name_or_is_a_count_or_a_share():
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
        r"|mfu|hfu|r_squared|length|flops_per_token|with_known_launch"
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
