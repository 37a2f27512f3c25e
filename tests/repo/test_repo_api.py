"""The Python API as docs/api.md shows it, executed as it stands there."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from harness.experiment.exercises import DDP
from tests.study.kit import completed
from tests.synthetic.job import write_traces
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", API, re.MULTILINE | re.DOTALL)


@pytest.fixture
def _last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    for trace in write_traces(completed(tmp_path, "1", DDP()).path / "torch"):
        trace.with_suffix(".json.gz").write_bytes(gzip.compress(trace.read_bytes()))


@pytest.mark.usefixtures("_last_run")
def test_the_page_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "1.0 ms per step" in said
    assert "same 1.0 (1.0, 1.0)" in said
    assert len(BLOCKS[0].splitlines()) <= 10
    table = names["table"]
    assert isinstance(table, pandas.DataFrame)
    assert {"communication", "gemm"} <= {*table["kind"]}
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", API, re.MULTILINE))))
    assert documented == set(table.columns)


def test_importing_the_package_costs_nothing() -> None:
    code = "import harness, sys; print(sorted({'numpy', 'pydantic', 'typer'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s()
    )
    assert done.stdout.strip() == "[]"
