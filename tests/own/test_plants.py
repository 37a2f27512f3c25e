"""Stalls that the benchmark plants into trainings: one more line, which runs in each step on its ranks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from own_trainings import SCRIPTS, TRAININGS
from plant_stalls import KINDS, Plant, draw, planted, spots


def text_of(plant: Plant) -> tuple[str, str]:
    """The file before and after."""
    before = (SCRIPTS / plant.spot.file).read_text(encoding="utf-8")
    return before, planted(before, plant, Path("records"), Path("large"))


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_changed_text_compiles_and_has_one_more_line_at_every_spot(name: str, kind: str) -> None:
    for spot in spots(TRAININGS[name]):
        before, after = text_of(Plant(name, spot, kind, 1, 20, every=3))
        ast.parse(after)
        lines = after.splitlines()
        assert kind == "all-reduce" or "20000000" in lines[spot.line - 1] or "0.02" in lines[spot.line - 1]
        assert [*lines[: spot.line - 1], *lines[spot.line :]] == before.splitlines()


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_has_spots_enough_and_none_of_them_in_its_stopwatch(name: str) -> None:
    found = spots(TRAININGS[name])
    assert len(found) >= 7
    assert all(spot.file != "stopwatch.py" for spot in found)


def test_the_same_seed_draws_the_same_stall_and_others_draw_every_kind() -> None:
    training = TRAININGS["plain_ddp"]
    drawn = [draw(training, seed) for seed in range(60)]
    assert drawn == [draw(training, seed) for seed in range(60)]
    assert {plant.kind for plant in drawn} == set(KINDS)
    assert {plant.rank for plant in drawn} == {None, 0, 1}
    assert all(plant.rank is None for plant in drawn if plant.kind == "all-reduce")
    assert all(plant.rank is not None for plant in drawn if plant.kind == "operators")
