"""How long a whole job takes and what that costs: expected from its steps, and at most by its time limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.launch.job import Job
from harness.study.plan.capacity import device_of
from harness.study.plan.history import EarlierRun
from harness.study.plan.workload import Workload
from harness.theory.cost import energy_kwh, gpu_hours

START_S = {"cuda": 120.0, "cpu": 15.0}
START_SOURCE = "an assumption: container, imports, weights and the profiler's report"


class Cost(NamedTuple):
    """gpus: 0 if the job holds none. expected_s: of the whole job, with the fastest step and with the slowest; None:
    not known. least_s: without a start. watts: of one GPU; None: not known."""

    gpus: int
    limit_s: float
    expected_s: tuple[float, float] | None
    least_s: float | None
    watts: float | None
    start_source: str = START_SOURCE

    def gpu_hours(self) -> tuple[float, float] | None:
        """Expected, from and to."""
        if self.expected_s is None or not self.gpus:
            return None
        low, high = (gpu_hours(self.gpus, min(s, self.limit_s)) for s in self.expected_s)
        return low, high

    @property
    def most_gpu_hours(self) -> float:
        """All GPUs until the time limit."""
        return gpu_hours(self.gpus, self.limit_s)

    def most_kwh(self) -> float | None:
        """What the GPUs use if each draws its thermal design power for the longer expected time, else the limit."""
        if self.watts is None or not self.gpus:
            return None
        seconds = self.limit_s if self.expected_s is None else min(self.expected_s[1], self.limit_s)
        return energy_kwh(self.gpus, seconds, self.watts)


def cost_of(
    job: Job, w: Workload | None, step_ns: tuple[float, float] | None, earlier: Sequence[EarlierRun] = ()
) -> Cost:
    """The cost of a job; step_ns: of one step, the shortest and the longest that are expected."""
    asked = job.experiment
    gpus = (asked.nodes * (asked.gpus_per_node or 0)) if job.device == "cuda" else 0
    device = device_of(job)
    watts = device.watts if device else None
    limit = float(job.site.time_s)
    if w is None or step_ns is None:
        return Cost(gpus, limit, None, None, watts)
    low, high = (w.steps * each / 1e9 for each in step_ns)
    starts = [each.start_s for each in earlier if each.start_s is not None]
    shortest, longest = (min(starts), max(starts)) if starts else 2 * (START_S[job.device],)
    source = "as long as those of the earlier runs" if starts else START_SOURCE
    return Cost(gpus, limit, (low + shortest, high + longest), low, watts, source)
