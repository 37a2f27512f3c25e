"""A rank's number may become known after it has begun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.common.run_folder.heartbeats import MEMORY
from tests.exercises.launching import ROOT
from tests.waiting import limit_s

pytestmark = pytest.mark.train


def test_a_rank_that_learns_its_number_later_has_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from harness.observe import heartbeat\nheartbeat.begin(0, 1, 0)\nheartbeat.begin(2, 4, 2)\nheartbeat.over()\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), MEMORY: str(tmp_path)}
    subprocess.run([sys.executable, str(script)], env=environ, check=True, timeout=limit_s())
    (found,) = (json.loads(path.read_text()) for path in tmp_path.glob("rank*.json"))
    assert (found["rank"], found["world"], found["local"]) == (2, 4, 2)
