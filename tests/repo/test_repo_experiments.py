"""docs/experiments.md lists every flag of single experiments; docs/course.md names what is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.experiment.exercises import EXERCISES
from harness.experiment.options import options_of
from harness.study.lessons import Lesson, lesson_names, load_lesson

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "experiments.md"
COURSE = (ROOT / "docs/course.md").read_text(encoding="utf-8")
HABITS = {"--seed", "--monitor-hz", "--wait-steps"}  # of any run, and no experiment


class Row(NamedTuple):
    """One experiment."""

    what: str
    words: list[str]
    lesson: str
    cpu: str


def rows() -> Iterator[Row]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\| (.+?) \| `bash slurm.sh (.+?)` \| ?(.*?) \| (yes|no|in part) \|", line):
            yield Row(found[1], shlex.split(found[2]), found[3].strip(), found[4])


ROWS = list(rows())


def test_every_line_of_its_tables_is_read() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len([line for line in lines if not line.startswith("| experiment")]) == len(ROWS) > 15


def test_every_flag_of_single_experiments_is_there() -> None:
    rare = [option.flag for cls in EXERCISES.values() for option in options_of(cls) if option.flag.rare]
    typed = {word for row in ROWS for word in row.words}
    lacking = {name for flag in rare for name in flag.names if not set(flag.names) & (typed | HABITS)}
    assert lacking == set()


def test_every_lesson_beyond_the_workshop_is_there() -> None:
    further = {name for name in lesson_names() if load_lesson(name).further}
    assert further <= {row.lesson for row in ROWS}


# ---- The course


def section(title: str) -> str:
    return COURSE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def course_rows(title: str) -> list[list[str]]:
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
    for what, *_ in course_rows("Frequent problems"):
        for message in re.findall(r"`([^`]+)`", what):
            assert message.strip("… :") in sources, message


def ran() -> dict[str, str]:
    """Command, without `slurm.sh`, to the test that runs it."""
    table = course_rows("What was run")
    return {
        command.removeprefix("slurm.sh "): test.strip("`")
        for commands, test in table
        for command in re.findall(r"`([^`]+)`", commands)
    }


@pytest.mark.parametrize("test", sorted(set(ran().values())))
def test_each_test_that_it_names_is_there(test: str) -> None:
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
