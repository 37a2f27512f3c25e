"""No heartbeats, however wrong their file is, end `watch` or make it wait."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from harness.live.screen import as_json, as_line, screen
from harness.live.view import WatchedRun
from harness.run.state import RunState
from tests.heartbeats.written import S
from tests.live.watched_run import Growing, slurm_run
from tests.run.hostile_files import KINDS

RUNNING = RunState("running", began_ns=time.time_ns() - 75 * S)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_file_of_heartbeats_leaves_the_other_nodes(tmp_path: Path, kind: str) -> None:
    run = slurm_run(tmp_path)
    growing = Growing(run)
    growing.grow(10)
    before, after = WatchedRun(run), WatchedRun(run)
    assert len(before.look(RUNNING).live.ranks) == 8
    KINDS[kind](growing.nodes[0].path)
    for watched in (before, after):
        view = watched.look(RUNNING)
        assert set(view.live.ranks) >= {4, 5, 6, 7}
        assert view.live.ranks[5].step == 40
        assert screen(view, 80, 24)
        assert as_line(view)
        json.loads(as_json(view))
    growing.nodes[1].run(1, first=40)
    assert len(before.look(RUNNING).live.ranks[5].history) == 44
