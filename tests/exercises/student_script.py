"""`train_todo.py` as a student fills it: with the text of the exercise's page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection

from tests.exercises.launching import ROOT

EXERCISE = ROOT / "exercises/exercise_1_DDP"
GAPS = range(1, 9)


def solution() -> dict[int, list[str]]:
    """What the page has for each gap, a text for each of its places in the script."""
    page = (EXERCISE / "ranges.md").read_text(encoding="utf-8")
    found = re.findall(r"^Gap (\d):\n\n```python\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    return {int(number): code.split("...\n") for number, code in found}


def filled(without: Collection[int] = ()) -> str:
    """The script with these gaps left open."""
    texts = solution()
    lines = []
    for line in (EXERCISE / "train_todo.py").read_text(encoding="utf-8").splitlines(keepends=True):
        lines.append(line)
        if (gap := re.match(r"( *)# GAP (\d)", line)) and int(gap[2]) not in without:
            lines.append(textwrap.indent(texts[int(gap[2])].pop(0), gap[1]))
    assert all(not texts[gap] for gap in GAPS if gap not in without), "every text has its place"
    return "".join(lines)
