"""`slurm.sh mystery class`: the board of many students, graded again from the answers files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import JsonOption
from harness.common.paths import expanded

if TYPE_CHECKING:
    from harness.study.mystery_board import Board, Row

HEAD = ("student", "run", "exercise", "level", "mystery", "answers", "causes", "points", "")


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|FOLDER…", help="answers files, or folders of them, such as HARNESS_RUNS"
        ),
    ],
    as_json: JsonOption = False,
) -> int:
    """The board of a class: each student's points, and the most common wrong answers."""
    from harness.study.mystery_board import answer_files, read_board

    board = read_board(answer_files([expanded(str(path)) for path in paths]))
    if as_json:
        print(json.dumps(asdict(board), indent=1))
    else:
        print("\n".join(_lines(board)))
    return 0


def _lines(board: Board) -> Iterator[str]:
    rows = [HEAD, *map(_cells, board.rows)]
    wide = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        yield "  ".join(f"{cell:<{size}}" for cell, size in zip(row, wide, strict=True)).rstrip()
    if board.mistakes:
        yield ""
        yield "The most common wrong causes"
    for mistake in board.mistakes:
        who = "1 student" if mistake.students == 1 else f"{mistake.students} students"
        yield f"  {mistake.said} instead of {mistake.instead_of}: {mistake.times} × by {who}"


def _cells(row: Row) -> tuple[str, ...]:
    points = "–" if row.points is None else str(row.points)
    causes = f"{row.causes_right} of {row.causes}" if row.causes else "–"
    note = row.note or ("revealed" if row.revealed else "")
    numbers = map(str, (row.exercise, row.level))
    return (row.student, row.run, *numbers, row.mystery, str(row.tries), causes, points, note)
