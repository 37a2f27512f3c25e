"""The trace tools of BSC, which makes Paraver, parse every record that we write and find the labels.

They check the syntax; `strict_prv` checks order, objects and conservation.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.export.paraver import write_paraver
from harness.traces import find_traces, open_trace
from tests.real_traces import EACH_TOOL, real_trace
from tests.synthetic.columns import event, trace
from tests.waiting import limit_s

PTD = shutil.which("ptd", path=str(Path(sys.executable).parent))
pytestmark = pytest.mark.skipif(PTD is None, reason="pertalde has no wheel for this Python or machine")


def ptd(command: str, *words: str | Path) -> str:
    """The output of one of BSC's tools, with its errors."""
    done = subprocess.run([str(PTD), command, *words], capture_output=True, text=True, check=False, timeout=limit_s())
    return f"{done.stdout}{done.stderr}"


def test_the_checker_finds_what_is_wrong(tmp_path: Path) -> None:
    prv = write_paraver([trace([event("gemm", 0, 10), event("gemm", 20, 30)])], tmp_path / "made").prv
    assert ptd("comprovar", "--exhaustive", prv) == ""
    prv.write_text(prv.read_text() + "2:1:1:1\n")
    assert "missing values" in ptd("comprovar", "--exhaustive", prv)


@pytest.mark.parametrize("name", EACH_TOOL)
def test_a_real_trace_is_well_formed_to_the_last_record(name: str, tmp_path: Path) -> None:
    traces = [open_trace(path) for path in find_traces([real_trace(name)])]
    written = write_paraver(traces, tmp_path / "trace")
    assert ptd("comprovar", "--exhaustive", written.prv) == ""
    assert "CUDA kernel" in ptd("comptar", written.prv)
