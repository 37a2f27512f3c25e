"""An analysis that gives rows of a process is found by the name of its field: none may stand there unseen."""

from __future__ import annotations

from pathlib import Path

import harness.analysis.process
from harness.analysis.process.rows import row_analyses


def test_every_analysis_of_rows_has_a_field_of_its_name() -> None:
    (folder,) = harness.analysis.process.__path__
    modules = Path(folder).glob("*.py")
    assert {m.stem for m in modules if "\ndef of_process(" in m.read_text(encoding="utf-8")} == set(row_analyses())
    assert "launches" in row_analyses()
