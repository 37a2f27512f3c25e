"""The board of a class: answers files of many students, graded again from the sealed mysteries in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from harness.common.errors import RequestError
from harness.common.walk import Walk
from harness.run.mystery import Answer, AnswerLine, answers_file, before_reveal, read_answers
from harness.study.mysteries import faults_of
from harness.study.mystery_grades import Result, cause_of, result

MOST_LOOKED_AT = 500_000  # of a whole class some 20,000


@dataclass(frozen=True)
class Row:
    """One mystery of one student. mystery: the beginning of its commitment, the same for the same seed and place.
    points: None if it could not be graded; `note` says why. revealed: its end was seen."""

    student: str
    run: str
    exercise: int
    level: int
    mystery: str
    tries: int
    points: int | None
    causes_right: int
    causes: int
    revealed: bool
    note: str = ""


@dataclass(frozen=True)
class Mistake:
    """A wrong cause. students: how many said it, in `times` answers."""

    said: str
    instead_of: str
    students: int
    times: int


@dataclass(frozen=True)
class Board:
    """rows: by student and run. mistakes: the commonest first."""

    rows: list[Row]
    mistakes: list[Mistake]


def answer_files(paths: Iterable[Path]) -> list[Path]:
    """The answers files that are named, or below the folders that are named; each once.

    Raises:
        RequestError: a path is not there, there is no answers file, or a folder is too large to be that of a class.
        WorkError: a file cannot be read.
    """
    found: list[Path] = []
    asked = list(paths)
    for path in asked:
        if not path.exists():
            raise RequestError(f"{path}: there is no such file or folder")
        name = answers_file(Path()).name
        found += _below(path, name) if path.is_dir() else [path]
    if not any(map(read_answers, found)):
        places = ", ".join(map(str, asked))
        raise RequestError(
            f"{places}: has no answer to a mystery: students hand in the file {name} of their run"
        )
    return list({path.resolve(): path for path in found}.values())


def _below(folder: Path, name: str) -> list[Path]:
    def bounded(walk: Walk) -> None:
        if walk.looked_at > MOST_LOOKED_AT:
            raise RequestError(
                f"{folder}: holds more than {MOST_LOOKED_AT:,} files and folders: name a folder of answers files"
            )

    return sorted(path for path in Walk(folder, bounded).files() if path.name.endswith(name))


def read_board(files: Iterable[Path]) -> Board:
    """The answers of all files on one board."""
    every = (line for path in files for line in read_answers(path))
    lines = list(
        {line.model_dump_json(): line for line in every}.values()
    )  # a file may have been handed in twice
    lines.sort(key=_mystery_of)
    graded = [_graded(list(of_one)) for _, of_one in groupby(lines, key=_mystery_of)]
    return Board([row for row, _ in graded], _mistakes(wrong for _, some in graded for wrong in some))


def _mystery_of(line: AnswerLine) -> tuple[str, str, str]:
    return line.student, line.run, line.mystery.commitment


Wrong = tuple[str, str, str]  # student, what was said, what it was


def _graded(lines: Sequence[AnswerLine]) -> tuple[Row, list[Wrong]]:
    ordered = sorted(lines, key=lambda line: line.unix_ns)
    first, counted = ordered[0], before_reveal(ordered)
    answers = [line.answer for line in counted if line.answer is not None]
    try:
        faults = faults_of(first.mystery)
    except RequestError as error:
        return _row(first, answers, None, len(counted) < len(ordered), str(error)), []
    found = result(faults, answers, first.world_size)
    row = _row(first, answers, found, len(counted) < len(ordered), "")
    return row, list(_wrong(first.student, answers, found))


def _row(
    first: AnswerLine, answers: Sequence[Answer], found: Result | None, revealed: bool, note: str
) -> Row:
    right = sum(one is not None and one[1].parts[0].hint == "" for one in found.last) if found else 0
    return Row(
        student=first.student,
        run=first.run,
        exercise=first.exercise,
        level=first.mystery.level,
        mystery=first.mystery.commitment[:8],
        tries=len(answers),
        points=found.points if found else None,
        causes_right=right,
        causes=len(found.faults) if found else 0,
        revealed=revealed,
        note=note,
    )


def _wrong(student: str, answers: Sequence[Answer], found: Result) -> Iterator[Wrong]:
    """Every answer with a cause that is none of the mystery's."""
    true = [cause_of(fault) for fault in found.faults]
    yield from ((student, answer.cause, " + ".join(true)) for answer in answers if answer.cause not in true)


def _mistakes(wrong: Iterable[Wrong]) -> list[Mistake]:
    every = list(wrong)
    times = Counter((said, true) for _, said, true in every)
    by = Counter((said, true) for _, said, true in set(every))
    return [Mistake(said, true, by[said, true], count) for (said, true), count in times.most_common()]
