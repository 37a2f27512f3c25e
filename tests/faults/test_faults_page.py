"""docs/development/reliability.md is the table: after a change, `python -m tests.faults --write FILE`."""

from __future__ import annotations

from tests.faults import __main__ as reliability
from tests.faults.scene import ROOT
from tests.faults.table import CASES


def test_the_page_is_written_from_the_table() -> None:
    page = (ROOT / "docs/development/reliability.md").read_text(encoding="utf-8")
    assert page == reliability.page()
    assert len({case.name for case in CASES}) == len(CASES)
