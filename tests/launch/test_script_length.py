"""A script is short, and has no construction of bash that its reader has to take apart."""

from __future__ import annotations

import re

import pytest

from tests.launch.golden_scripts import ALL, script_of
from tests.launch.launch_shared import ROOT, SITES

CONSTRUCTIONS = {
    "a function": r"^\s*(function\s+\w|[\w-]+\s*\(\s*\))",
    "trap": r"\btrap\b",
    "mapfile": r"\b(mapfile|readarray)\b",
    "process substitution": r"<\(",
    "a loop": r"(^|[;&|({]|\bdo|\bthen|\belse|!)\s*(for|while|until|select)\s",
}


def constructions(script: str) -> list[str]:
    """Those in the script without its comments and without texts that bash does not read as commands."""
    lines = [re.sub(r" # .*", "", line) for line in script.splitlines() if not line.startswith("#")]
    code = re.sub(r"'[^']*'", "''", "\n".join(lines))
    return [name for name, pattern in CONSTRUCTIONS.items() if re.search(pattern, code, re.MULTILINE)]


@pytest.mark.parametrize("site", [site for site in SITES if (ROOT / f"tests/golden/{site}.txt").is_file()])
def test_a_script_has_at_most_a_hundred_lines_and_neither_functions_nor_loops(site: str) -> None:
    golden = (ROOT / "tests" / "golden" / f"{site}.txt").read_text(encoding="utf-8")
    for exercise in ALL:
        script = script_of(exercise, golden)
        assert (len(script.splitlines()) <= 100, constructions(script)) == (True, [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("run() {\n:\n}", ["a function"]),
        ("function run { :; }", ["a function"]),
        ("trap 'exit 1' TERM", ["trap"]),
        ("mapfile -t HOSTS < hosts", ["mapfile"]),
        ("cat <(ls)", ["process substitution"]),
        ("for node in 1 2; do :; done", ["a loop"]),
        ("sleep 1 & while kill -0 $!; do :; done", ["a loop"]),
        ("# for a reader: while it runs", []),
        ("echo 'a trap for me' # while it runs", []),
        ("WORDS=(train.py\n  --seed 1)\nX=$(hostname)", []),
    ],
)
def test_each_construction_is_found(text: str, found: list[str]) -> None:
    assert constructions(text) == found
