"""Ends what is left on this machine of ranks that were stuck: `python -m harness.live.leftovers RUN_DIR`."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from harness.common.heartbeats import live_folder
from harness.live import processes


def kill_leftovers(run: Path) -> None:
    """Kill what is left on this machine of ranks that were stuck, and of what they started."""
    for path in live_folder(run).glob("*.stuck.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_bytes())
            ranks = content["ranks"] if content["host"] == os.uname().nodename else []
            for process in [*ranks, *(child for rank in ranks for child in rank["children"])]:
                now = processes.stat_of(int(process["pid"]))
                if now is not None and now.started == process["started"]:
                    os.kill(int(process["pid"]), signal.SIGKILL)


if __name__ == "__main__":
    kill_leftovers(Path(sys.argv[1]))
