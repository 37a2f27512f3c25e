"""An analysis that gives rows of a process has the name of its field and its line in the list: none stands unseen."""

from __future__ import annotations

from pathlib import Path

import harness.analysis.process
from harness.analysis.process.rows import ROW_ANALYSES
from harness.analysis.summary import Summary


def test_every_analysis_of_rows_has_a_field_of_its_name() -> None:
    (folder,) = harness.analysis.process.__path__
    modules = Path(folder).glob("*.py")
    assert {m.stem for m in modules if "\ndef of_process(" in m.read_text(encoding="utf-8")} == set(ROW_ANALYSES)
    assert "launches" in ROW_ANALYSES and set(ROW_ANALYSES) <= set(Summary.__struct_fields__)
