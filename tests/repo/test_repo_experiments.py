"""docs/experiments.md lists every flag of single experiments, with commands that are requests, and what a CPU shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.cli.commands import COMMANDS
from harness.cli.launch.launch import request_of
from harness.cli.parser import declared, read_line
from harness.experiment.exercises import EXERCISES
from harness.experiment.options import options_of
from harness.study.lessons import lesson_names, load_lesson

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_its_command_is_a_request(row: Row) -> None:
    if row.words[0] in COMMANDS:
        return  # tests/repo/test_repo_docs.py looks at it
    site = [] if "--site" in row.words else ["--site", "leonardo"]
    assert request_of(read_line([*row.words, *site], declared()))


@pytest.mark.parametrize("row", [row for row in ROWS if row.lesson in lesson_names()], ids=lambda row: row.what)
def test_a_cpu_shows_what_its_lesson_shows_there(row: Row) -> None:
    lesson = load_lesson(row.lesson)
    needs = [relation.needs for relation in lesson.here(cpu=True).relations]
    shown = "no" if all(need == "gpu" for need in needs) else "in part" if "gpu" in needs else "yes"
    another = lesson.here(cpu=True).question != lesson.question  # of the same runs, or of the nearest that there are
    assert row.cpu in ({shown, "in part"} if another or "network" in needs else {shown})


def test_every_lesson_beyond_the_workshop_is_there() -> None:
    further = {name for name in lesson_names() if load_lesson(name).further}
    assert further <= {row.lesson for row in ROWS}
