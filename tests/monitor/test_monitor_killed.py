"""A real run on this machine whose monitors are killed: it goes on, and its report says what was not seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.analysis.summary.problem_texts import MONITOR_GAP
from harness.measure.run_contents import read_contents
from harness.monitor.samples import read
from tests.monitor.conftest import REPOSITORY
from tests.waiting import limit_s, wait_until


def kill_monitor(runs: Path, number: int) -> None:
    """Kill the run's monitor with SIGKILL, once its start of this number has taken samples."""

    def sampling() -> list[Path]:
        found = list(runs.glob("*/profiler/[!.]*/gpus-monitor/*/meta.json"))
        recordings = [(meta, read(meta.parent)) for meta in found]
        return [meta for meta, r in recordings if len(r.starts) == number and r.span_ns[1] > r.starts[-1]]

    wait_until(sampling, f"start {number} of a monitor", lambda: list(runs.rglob("*")))
    os.kill(json.loads(sampling()[0].read_text())["monitor_pid"], signal.SIGKILL)


def test_a_run_whose_monitor_is_killed_twice_completes_and_says_both(tmp_path: Path) -> None:
    goes_on = tmp_path / "goes-on"
    waits = ["bash", "-c", f"until [ -e '{goes_on}' ]; do sleep 0.1; done; sleep 4"]  # less than 3 s would be no loss
    words = ["run", "-g", "1", "--site", "local", "--monitor-hz", "10", "--wait", "--", *waits]
    environment = {**os.environ, "HARNESS_RUNS": str(tmp_path)}
    run = subprocess.Popen(
        [sys.executable, "-m", "harness", *words], cwd=REPOSITORY, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        kill_monitor(tmp_path, 1)
        kill_monitor(tmp_path, 2)
    finally:
        goes_on.touch()
    _, err = run.communicate(timeout=limit_s(300))
    assert run.returncode == 0, err
    (path,) = tmp_path.glob("*/profiler/[!.]*")
    (recording,) = (read(folder) for folder in (path / "gpus-monitor").iterdir())
    assert recording.died and len(recording.starts) == 2 and len(recording.gaps) == 1
    told = (tmp_path / "own" / "logs" / "local-1" / "log.err").read_text()
    assert told.count("the monitor ended with status 137") == 2
    assert told.index("it is started again once") < told.index("it is not started again")
    assert [found.what for found in read_contents(path).problems].count(MONITOR_GAP) == 2, "the gap and the end"
