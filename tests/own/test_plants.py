"""Stalls that the benchmark plants into trainings: one more line, which runs in each step on its ranks."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_trainings import SCRIPTS, TRAININGS
from plant_stalls import KINDS, Plant, draw, plant_into, planted, spots

from tests.own.forked_trainings import run_forked
from tests.own.observed_trainings import training_of

STEPS = 3
IN_CI = ("plain_ddp", "two_optimizers", "lbfgs")  # several functions, several files, a closure


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Path]:
    """A copy of the scripts, to plant into."""
    copy = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "large").write_bytes(bytes(1 << 21))
    yield copy


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


@pytest.mark.long  # of the benchmarks' own tool, which says itself what it planted
@pytest.mark.train
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.long) for name in TRAININGS]
)
def test_a_planted_line_runs_in_each_step_wherever_it_is(name: str, scripts: Path) -> None:
    training = training_of(name)
    records = [(spot, scripts.parent / f"records{number}") for number, spot in enumerate(spots(training))]
    for spot, record in reversed(records):  # from a file's end, so that lines further up keep their numbers
        plant_into(scripts, Plant(name, spot, "sleep", training.ranks - 1, 0.1), record, scripts.parent / "large")
    run_forked(training, ["--steps", str(STEPS)], scripts, scripts)
    for spot, record in records:
        times = len(record.with_name(f"{record.name}.rank{training.ranks - 1}").read_text().splitlines())
        ahead = name == "transformers_trainer"  # whose loader may fetch one more batch
        assert spot.times * STEPS <= times <= spot.times * STEPS + ahead, spot


@pytest.mark.long  # as above
@pytest.mark.train
@pytest.mark.parametrize("kind", KINDS)
def test_a_stall_takes_the_time_it_is_given_and_only_on_its_rank(kind: str, scripts: Path) -> None:
    training = TRAININGS["plain_ddp"]
    rank = None if kind == "all-reduce" else 1
    plant = Plant("plain_ddp", spots(training)[0], kind, rank, 20, every=2)
    plant_into(scripts, plant, scripts.parent / "records", scripts.parent / "large")
    run_forked(training, ["--steps", "8"], scripts, scripts)
    files = sorted(scripts.parent.glob("records.rank*"))
    assert [file.suffix for file in files] == ([".rank0", ".rank1"] if rank is None else [".rank1"])
    spent = [int(line.split()[1]) for line in files[-1].read_text().splitlines()]
    assert len(spent) == 4
    assert kind == "all-reduce" or min(spent) >= 20e6
