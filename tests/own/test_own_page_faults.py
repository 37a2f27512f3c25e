"""A training that from a step on gives memory back to the kernel, and what its report advises."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from own_trainings import SCRIPTS, TRAININGS

from harness.analysis.summary import PaceChange
from harness.common.run_files import METRICS
from harness.measure.run_files import read_training
from harness.measure.step_times import RankStepTimes, pace_of
from tests.own.observed_trainings import start

pytestmark = [pytest.mark.train, pytest.mark.long]

TRAINING = TRAININGS["plain_ddp"]
STEP, STEPS = 60, 120
LARGE = 64 * 2**20  # bytes: so much at once the C library always takes from the kernel, and gives it back
LINE = "        watch.step_done()\n"
ADVISED = {"MALLOC_TRIM_THRESHOLD_": "1073741824", "MALLOC_MMAP_THRESHOLD_": "1073741824"}


def change_of(folder: Path) -> PaceChange | None:
    """The change at STEP of a training whose rank 0 makes and drops a large tensor in each step from there on."""
    shutil.copytree(SCRIPTS, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    script = folder / "scripts" / "plain_ddp.py"
    more = f"        if rank == 0 and progress.n >= {STEP}:\n            torch.ones({LARGE}, dtype=torch.uint8)\n"
    script.write_text(script.read_text(encoding="utf-8").replace(LINE, LINE + more), encoding="utf-8")
    asked = {"profiler": "none"}
    start(TRAINING, folder, ["--steps", str(STEPS)], asked=asked, scripts=folder / "scripts").ended()
    times = RankStepTimes()
    read_training([METRICS.path(folder, rank) for rank in range(TRAINING.ranks)], times)
    found = [change for change in pace_of(times)[0] if abs(change.step - STEP) <= 3]
    return found[0] if found else None


def test_more_page_faults_are_told_and_what_is_advised_makes_them_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = change_of(tmp_path / "slower")
    assert slower is not None
    assert (slower.ratio > 1, slower.ranks) == (True, [0])
    assert "page faults per step: " in slower.evidence
    for name, value in ADVISED.items():
        assert name in slower.evidence
        monkeypatch.setenv(name, value)
    advised = change_of(tmp_path / "advised")
    assert advised is None or (advised.ratio < slower.ratio and "page faults" not in advised.evidence)
