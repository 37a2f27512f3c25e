"""The ranks of a run that was stuck are ended at once, but for those that do something."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.common.run_folder.heartbeats import MEMORY
from harness.launch.on_node import leftovers
from tests.waiting import limit_s

DEAF = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(1, flush=True)\n"
WORKS = "while not os.path.exists(sys.argv[1]): pass"


def test_a_rank_that_does_nothing_is_killed_and_one_that_works_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_IDLE_S", 0.3)
    env, over = {**os.environ, MEMORY: str(tmp_path), "RANK": "0"}, tmp_path / "over"
    argv = ([sys.executable, "-S", "-c", DEAF + does, str(over)] for does in ("time.sleep(600)", WORKS))
    asleep, writes = (subprocess.Popen(words, env=env, stdout=subprocess.PIPE) for words in argv)
    assert [each.stdout.read(1) for each in (asleep, writes) if each.stdout] == [b"1", b"1"]
    killer = threading.Thread(target=leftovers.kill_stuck, args=(str(tmp_path),), daemon=True)
    killer.start()
    assert asleep.wait(limit_s()) == -9
    assert writes.poll() is None and killer.is_alive()
    over.touch()
    assert writes.wait(limit_s()) == 0, "as it ended by itself"
    killer.join(limit_s())
    assert not killer.is_alive()
