"""docs/development/reliability.md is what the suite measured: after a change, `HARNESS_WRITE_FAULTS=1 … --all`, then
`python -m tests.faults --write docs/development/reliability.md`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.faults import __main__ as reliability
from tests.faults import measured
from tests.faults.table import CASES

PAGE = Path(__file__).parents[2] / "docs" / "development" / "reliability.md"


def test_the_page_is_written_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == reliability.page()


def test_every_fault_was_measured_and_ended_as_the_table_says() -> None:
    found = measured.read()
    assert set(found) == {case.name for case in CASES}
    for case in CASES:
        outcome = found[case.name]
        assert outcome.state == case.fault.state, case.name
        assert re.search(case.fault.tells, outcome.told, re.MULTILINE), case.name
        if case.place == "slurm":
            assert outcome.slurm == case.fault.slurms_word, case.name


def test_there_are_as_many_as_were_promised_and_some_are_always_played() -> None:
    assert max(Counter(case.name for case in CASES).values()) == 1
    places = Counter(case.place for case in CASES)
    assert places["slurm"] >= 40
    assert places["local"] >= 20
    quick = Counter(case.place for case in CASES if case.quick)
    assert min(quick["slurm"], quick["local"]) >= 6
