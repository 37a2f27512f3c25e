"""Exercise 1 under nsys, where there is one: its capture range, NVTX, our reader, nsys2prv."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import pytest

from tests.gpu.claims import Claim, of_each_report
from tests.gpu.work import WINDOW, Run, Work

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="session")
def run(work: Work) -> Run:
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not on PATH")
    return work.launched("nsys", "-e", "1", *WINDOW, "--mixed-precision", "--profiler", "nsys", seconds=90)


def test_nsys_wrote_a_report(run: Run) -> None:
    assert list((run.path / "nsys").glob("*.nsys-rep"))


def test_the_capture_range_holds_the_profiled_steps_and_nothing_else(run: Run, record_property: Any) -> None:
    record_property("reader", (run.summary["sources"] or [None])[0])
    ranges = {row["name"].partition("_")[0]: row["instances"] for row in run.summary["ranges"]}
    assert ranges.get("batch", 0) == int(WINDOW[-1]), f"steps from {run.summary['steps']['source']}"


@of_each_report
@pytest.mark.usefixtures("gpu")  # without one nsys records ranges alone
def test_its_report(run: Run, claim: Claim) -> None:
    claim(run.summary)


def test_nsys2prv_reads_the_report(run: Run, work: Work) -> None:
    if importlib.util.find_spec("nsys2prv") is None and shutil.which("nsys2prv") is None:
        pytest.skip("the package nsys2prv is missing")
    out = work.folder / "paraver" / "trace"
    out.parent.mkdir(exist_ok=True)
    work.harness(["export", "paraver", run.path, "--engine", "nsys2prv", "--out", out])
    assert {".prv", ".pcf", ".row"} <= {path.suffix for path in out.parent.glob("trace*")}
