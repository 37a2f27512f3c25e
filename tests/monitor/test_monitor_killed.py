"""A real run on this machine whose monitors are killed: it trains on, and its report says what was not seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.analysis.summary.problem_texts import MONITOR_DIED, MONITOR_GAP
from harness.measure.run_contents import read_contents
from harness.monitor.samples import read
from tests.monitor.conftest import REPOSITORY
from tests.waiting import limit_s

pytestmark = pytest.mark.train


def kill_monitor(runs: Path, number: int) -> None:
    """Kill the run's monitor with SIGKILL, once its start of this number has taken samples."""
    for _ in range(3000):
        for meta in runs.glob("*/profiler/[!.]*/gpus-monitor/*/meta.json"):
            recording = read(meta.parent)
            if len(recording.starts) == number and recording.span_ns[1] > recording.starts[-1]:
                os.kill(json.loads(meta.read_text())["monitor_pid"], signal.SIGKILL)
                return
        time.sleep(0.02)
    raise AssertionError(f"there was no start {number} of a monitor in a minute")


def test_a_run_whose_monitor_is_killed_twice_completes_and_says_both(tmp_path: Path) -> None:
    words = [
        "-e",
        "1",
        "-g",
        "1",
        "--site",
        "local",
        "--monitor-hz",
        "10",
        "--wait",
        "--",
        "--no-profile",
        "--steps",
        "2",
    ]
    run = subprocess.Popen(
        [sys.executable, "-m", "harness", *words], cwd=REPOSITORY, env={**os.environ, "HARNESS_RUNS": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    kill_monitor(tmp_path, 1)
    kill_monitor(tmp_path, 2)
    out, err = run.communicate(timeout=limit_s(300))
    assert run.returncode == 0, err
    (path,) = tmp_path.glob("*/profiler/[!.]*")
    (recording,) = (read(folder) for folder in (path / "gpus-monitor").iterdir())
    assert recording.died and len(recording.starts) == 2 and len(recording.gaps) == 1
    told = (tmp_path / "exercise_1_DDP" / "logs" / "local-1" / "log.err").read_text()
    assert told.count("the monitor ended with status 137") == 2
    assert told.index("it is started again once") < told.index("it is not started again")
    assert {found.what for found in read_contents(path).problems} >= {MONITOR_DIED, MONITOR_GAP}
    assert MONITOR_DIED in " ".join(out.split())
