"""Draws docs/pictures/collectives: of each collective what four ranks have before and after it. Light on any ground."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from harness.common.palette import SERIES

FOLDER = Path(__file__).parents[1] / "docs/pictures/collectives"
RANKS = range(4)
CELL, STEP = 22, 28  # of a cell, and from one rank's row to the next
LEFT, TOP, ARROW = 34, 20, 46

Cell = tuple[int, ...] | None
"""The ranks whose data are in it: one, or all as a sum; None: nothing."""
Ranks = list[list[Cell]]
"""Of each rank its four parts."""

ALL = tuple(RANKS)

# The number in a cell: which part of its owner's data it is. After an all-to-all rank r has everyone's part r.
NUMBER: dict[str, Callable[[int, int], int]] = {"all-to-all": lambda rank, part: rank}


def _fill(cell: Callable[[int, int], Cell]) -> Ranks:
    return [[cell(rank, part) for part in RANKS] for rank in RANKS]


OWN = _fill(lambda rank, part: (rank,))
OWN_PART = _fill(lambda rank, part: (rank,) if part == rank else None)
OF_ROOT = _fill(lambda rank, part: (0,) if rank == 0 else None)
PARTS = _fill(lambda rank, part: (part,))
COLLECTIVES: dict[str, tuple[Ranks, Ranks]] = {
    "broadcast": (OF_ROOT, _fill(lambda rank, part: (0,))),
    "scatter": (OF_ROOT, _fill(lambda rank, part: (0,) if part == rank else None)),
    "gather": (OWN_PART, _fill(lambda rank, part: (part,) if rank == 0 else None)),
    "reduce": (OWN, _fill(lambda rank, part: ALL if rank == 0 else None)),
    "all-gather": (OWN_PART, PARTS),
    "reduce-scatter": (OWN, _fill(lambda rank, part: ALL if part == rank else None)),
    "all-reduce": (OWN, _fill(lambda rank, part: ALL)),
    "all-to-all": (OWN, PARTS),
    "send-recv": (OF_ROOT, _fill(lambda rank, part: (0,) if rank < 2 else None)),
}


def drawing(name: str) -> str:
    """The SVG of one collective."""
    before, after = COLLECTIVES[name]
    width, height = LEFT + 8 * CELL + ARROW + 10, TOP + 4 * STEP
    right = LEFT + 4 * CELL + ARROW
    middle = TOP + 2 * STEP - (STEP - CELL) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" text-anchor="middle">',
        f"<title>{name}: four ranks before and after</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        f'<text x="{LEFT + 2 * CELL}" y="14" fill="#444">before</text>',
        f'<text x="{right + 2 * CELL}" y="14" fill="#444">after</text>',
        f'<path d="M{right - ARROW + 9} {middle}h{ARROW - 24}m-6 -5l6 5l-6 5" fill="none" stroke="#444"/>',
        *_side(before, LEFT, lambda rank, part: part),
        *_side(after, right, NUMBER.get(name, lambda rank, part: part)),
        *(f'<text x="16" y="{_y(rank) + 16}" fill="#444">r{rank}</text>' for rank in RANKS),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _y(rank: int) -> int:
    return TOP + rank * STEP


def _side(ranks: Ranks, left: int, number: Callable[[int, int], int]) -> Iterator[str]:
    for rank, cells in enumerate(ranks):
        for part, cell in enumerate(cells):
            yield from _cell(left + part * CELL, _y(rank), cell or (), number(rank, part))


def _cell(x: int, y: int, owners: tuple[int, ...], number: int) -> Iterator[str]:
    """A cell in its owner's colour; of a sum, a stripe in the colour of each; empty without owners."""
    for i, owner in enumerate(owners):
        high = CELL / len(owners)
        yield f'<rect x="{x}" y="{y + i * high:g}" width="{CELL}" height="{high:g}" fill="{SERIES[owner]}"/>'
    yield f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="none" stroke="#888"/>'
    if owners:
        text = "Σ" if len(owners) > 1 else str(number)
        disc = f'<circle cx="{x + CELL / 2:g}" cy="{y + CELL / 2:g}" r="7" fill="#ffffff"/>' if text == "Σ" else ""
        color = "#222" if text == "Σ" else "#ffffff"
        yield f'{disc}<text x="{x + CELL / 2:g}" y="{y + 15.5}" fill="{color}">{text}</text>'


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for each in COLLECTIVES:
        (FOLDER / f"{each}.svg").write_text(drawing(each), encoding="utf-8")
