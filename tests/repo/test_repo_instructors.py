"""docs/course.md promises a course: its lessons, messages and commands are those that there are, and are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.study.lessons import Lesson, lesson_names, load_lesson

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/course.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def nodes(lesson: Lesson) -> int:
    return max(lesson.a.nodes, lesson.b.nodes)


def test_the_gpus_of_a_lesson_fill_its_nodes() -> None:
    for lesson in map(load_lesson, lesson_names()):
        each = lesson.gpus_per_node
        assert lesson.gpus >= nodes(lesson) and (not each or lesson.gpus == nodes(lesson) * each), lesson.name


def test_every_message_is_one_of_ours() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "harness").rglob("*.py"))
    for what, *_ in rows("Frequent problems"):
        for message in re.findall(r"`([^`]+)`", what):
            assert message.strip("… :") in sources, message


def ran() -> dict[str, str]:
    """Command, without `slurm.sh`, to the test that runs it."""
    table = rows("What was run")
    return {
        command.removeprefix("slurm.sh "): test.strip("`")
        for commands, test in table
        for command in re.findall(r"`([^`]+)`", commands)
    }


@pytest.mark.parametrize("test", sorted(set(ran().values())))
def test_each_test_that_it_names_is_there(test: str) -> None:
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
