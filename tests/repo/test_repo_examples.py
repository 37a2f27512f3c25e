"""What a docstring shows is what comes out: all examples of the product and of its checks."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("harness", "exercises", "scripts")
PROGRAMS = ("exercises/exercise_0_Communication_Tests", "scripts")  # their modules import each other by one name
FILES = [
    file.relative_to(ROOT)
    for place in PLACES
    for file in sorted((ROOT / place).rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_the_examples_of_a_module_are_true(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = ".".join(file.with_suffix("").parts)
    for folder in PROGRAMS:
        if file.is_relative_to(folder):
            monkeypatch.syspath_prepend(str(ROOT / folder))
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
    failed, tried = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert tried and not failed
