"""The Python API as docs/api.md shows it, executed as it stands there."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas
import pytest

from harness.experiment.exercises import DDP
from harness.run import Run, Stage
from harness.run.record import RunRecord
from harness.site.site import load_site
from tests.synthetic.one_gpu import Event, document, event, launched
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", API, re.MULTILINE | re.DOTALL)


def a_trace(steps: int) -> dict[str, Any]:
    """Kineto JSON of one GPU: in each step of 1 ms a GEMM of 600 µs and an all-reduce of 200 µs."""
    events: list[Event] = []
    for n in range(steps):
        begin = 1000.0 * n
        events.append(event("user_annotation", f"ProfilerStep#{n}", begin, 1000.0))
        events += launched("ampere_bf16_s16816gemm_128x128", 2 * n + 1, begin + 100, 600.0)
        events += launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 2 * n + 2, begin + 750, 200.0, stream=20)
    return document(events)


@pytest.fixture
def last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    record = RunRecord(
        job_id="1", backend="local", experiment=DDP(), site=load_site("local"), job={}, command=[], git={},
        versions={}, user="x", submit_host="x", created_ns=time.time_ns(),
    )  # fmt: skip
    with Stage(tmp_path / DDP.folder) as stage:
        Run(stage.path).write_record(record)
        run = stage.publish("a-run", "1")
    (run.path / "torch").mkdir()
    with gzip.open(run.path / "torch" / "rank0.json.gz", "wt") as file:
        json.dump(a_trace(5), file, indent=1)
    return run


def test_the_page_runs_as_printed(last_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "1.0 ms per step" in said
    assert "same 1.0 (1.0, 1.0)" in said
    assert len(BLOCKS[0].splitlines()) <= 10
    table = names["table"]
    assert isinstance(table, pandas.DataFrame)
    assert sorted(table["kind"].unique()) == ["communication", "gemm"]
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", API, re.MULTILINE))))
    assert documented == set(table.columns)


def test_importing_the_package_costs_nothing() -> None:
    code = "import harness, sys; print(sorted({'numpy', 'pydantic', 'typer'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=limit_s()
    )
    assert done.stdout.strip() == "[]"
