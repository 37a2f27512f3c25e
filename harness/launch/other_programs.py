"""How much of this machine's cores other programs use, sampled while a launch is prepared."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import NamedTuple

from harness.common import processes
from harness.common.programs import usable_cores
from harness.launch.job import Job

LEAST_S = 0.5  # over which cores are sampled
DISTURBS = 0.2  # of the cores; of a whole run a report doubts from a tenth on, and this is a second of it
PATIENCE_S = 5.0
_IDLE, _STOLEN = (3, 4), 7  # columns of a core's ticks: idle, waits for a disk; used by other virtual machines


class CoreTicks(NamedTuple):
    """Ticks since the start of the machine, of the cores on which this process may run. job: of this process and those
    that it has waited for."""

    all: int
    busy: int
    job: float

    @classmethod
    def now(cls) -> CoreTicks | None:
        """None: this machine does not count them."""
        ticks = processes.core_ticks()
        if not ticks:
            return None
        cores = [ticks[name] for core in os.sched_getaffinity(0) if (name := f"cpu{core}") in ticks]
        not_busy = sum(core[at] for core in cores for at in (*_IDLE, _STOLEN))
        every = sum(map(sum, cores))
        return cls(every, every - not_busy, sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK"))


class OtherPrograms:
    """Begins to sample when it is made."""

    def __init__(self) -> None:
        self._began, self._began_s = CoreTicks.now(), time.monotonic()

    def warnings(self, job: Job) -> list[str]:
        """A sentence if they disturb the job's ranks, which run on these cores."""
        if self._began is None or job.device != "cpu":
            return []
        time.sleep(max(0.0, self._began_s + LEAST_S - time.monotonic()))
        now = CoreTicks.now() or self._began
        used = (now.busy - self._began.busy - (now.job - self._began.job)) / max(now.all - self._began.all, 1)
        ranks = job.experiment.nodes * (job.experiment.gpus_per_node or 1)
        if used < DISTURBS or ranks <= (1 - used) * usable_cores():
            return []
        return [f"other programs use {100 * used:.0f} % of your cores: the numbers will be doubtful"]


def wait_a_moment() -> None:
    """On a terminal: go on after PATIENCE_S, or at Enter."""
    if sys.stdin is not None and sys.stdin.isatty():
        print(f"goes on in {PATIENCE_S:.0f} s; Enter: at once; Ctrl-C: not at all", file=sys.stderr, flush=True)
        if select.select([sys.stdin], [], [], PATIENCE_S)[0]:
            sys.stdin.readline()
