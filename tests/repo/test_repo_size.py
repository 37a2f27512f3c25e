"""scripts/ceilings.py and scripts/docstring_names.py: how large a room may be, and what a docstring may explain."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
MODULE = '"""What it is for."""\n\nX = 1\n\n\ndef f() -> int:\n    """One."""\n    return 1\n'
sys.path.insert(0, str(ROOT / "scripts"))
CEILINGS, DOCSTRINGS = importlib.import_module("ceilings"), importlib.import_module("docstring_names")


def test_a_room_over_its_ceiling_is_named_with_both_numbers(tmp_path: Path) -> None:
    for name, text in {"harness/launch/job.py": MODULE, "tests/test_job.py": MODULE, "docs/page.md": "a\nb\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=limit_s())
    now = CEILINGS.sizes(tmp_path)
    assert now == {"docs": 2, "harness/launch": 3, "product": 3, "tests": 3}
    assert CEILINGS.faults(now, {"docs": 2, "harness/launch": 2, "harness/live": 9, "product": 3}) == [
        "harness/launch has 3, 1 over its ceiling of 2", "tests has 3 and no ceiling",
        "harness/live has a ceiling and is gone",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('def f(size_ns: int) -> None:\n    """Do. size_ns: of a step. size: of it."""', ["size"]),
        ('class A:\n    """a, b: of it; empty: none."""\n\n    a: int', ["b"]),
        ('def f(a: int) -> None:\n    """Say: it is so. Note: a."""', []),
    ],
)
def test_a_name_that_a_docstring_explains_and_that_is_not_there_is_found(text: str, names: list[str]) -> None:
    assert [name for _, name in DOCSTRINGS.gone(ast.parse(text))] == names
