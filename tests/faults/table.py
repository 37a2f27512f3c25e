"""The table: every fault, and the cases that are played. The page reliability.md is written from it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.faults import in_container, in_files, in_job, in_launch, in_queue, in_ranks, in_training
from tests.faults.fault import Fault, Place
from tests.faults.play import Case


class Section(NamedTuple):
    """A part of the table, as a heading of the page."""

    title: str
    faults: tuple[Fault, ...]


SECTIONS = (
    Section("A launch", in_launch.FAULTS),
    Section("The training's processes", in_ranks.FAULTS),
    Section("A training over two nodes", in_training.FAULTS),
    Section("Around the training", in_job.FAULTS),
    Section("Stopped: by its user, by Slurm, by its time limit", in_queue.FAULTS),
    Section("In a container", in_container.FAULTS),
    Section("The disk, files and output", in_files.FAULTS),
)
CASES = tuple(Case(fault, place) for section in SECTIONS for fault in section.faults for place in fault.where)


def cases_of(place: Place, contained: bool = False) -> list[object]:
    """The cases of a place as parameters of a test, in a container or not; those that are not quick are marked long."""
    return [
        pytest.param(case, id=case.name, marks=[] if case.quick else pytest.mark.long)
        for case in CASES
        if case.place == place and (case.fault in in_container.FAULTS) == contained
    ]
