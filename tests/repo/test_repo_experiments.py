"""docs/experiments.md lists every flag of single experiments, with commands that are requests, and what a CPU shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


def test_every_lesson_beyond_the_workshop_is_there() -> None:
    further = {name for name in lesson_names() if load_lesson(name).further}
    assert further <= {row.lesson for row in ROWS}
