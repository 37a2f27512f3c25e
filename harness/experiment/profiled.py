"""What every observed training has, whoever wrote it: a profiler with its window, and faults to inject.

Knows no model, no batch and no script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.common.errors import RequestError
from harness.common.faults import Setup, misfits, parse_fault
from harness.common.profile_window import FINE_TUNING, ProfileWindow
from harness.experiment.base import MOST, Broken, Count, CountOrZero, Experiment
from harness.experiment.options import FAULT, VALUE, Flag, for_nsys, switch, value

Seconds = Annotated[int, Field(ge=1, le=MOST)]  # nsys reads a fraction as 0
# The options of nsys by which it waits for the profiled steps: left out, it records by the clock.
BY_TIME: Mapping[str, object] = dict.fromkeys(("capture-range", "capture-range-end", "nvtx-capture"))


def _canonical(text: str) -> str:
    try:
        return str(parse_fault(text))
    except RequestError as error:
        raise ValueError(str(error)) from None


FaultText = Annotated[str, AfterValidator(_canonical)]


class Profiled(Experiment):
    """A training that is observed."""

    skip_steps: CountOrZero = value("--skip-steps", free=True, train="--skip").option(
        FINE_TUNING.skip, "batches before the profiler is set up"
    )
    wait_steps: CountOrZero = value("--wait-steps", free=True, train="--wait", rare=True).option(
        FINE_TUNING.wait, "batches for which the profiler waits"
    )
    warmup_steps: CountOrZero = value("--warmup-steps", free=True, train="--warmup").option(
        FINE_TUNING.warmup, "batches for which the profiler warms up"
    )
    active_steps: Count = value("--active-steps", free=True, train="--active").option(
        FINE_TUNING.active, "batches that are profiled"
    )
    profiler: Literal["auto", "nsys", "torch", "none"] = Flag(
        {"--profiler": VALUE, "--no-profile": "none"}, metavar="NAME", free=True
    ).option(
        "auto",
        "nsys, torch (torch.profiler), none; auto: nsys if the site has it and NVIDIA GPUs, else torch",
    )
    nsys_per: Literal["node", "rank"] = value(
        "--nsys-per", metavar="WHAT", free=True, nsys_only=True, rare=True
    ).option("node", "node: one nsys and one report for all ranks of a node; rank: one for each rank")
    capture_delay: Seconds | None = value(
        "--capture-delay", metavar="S", free=True, nsys={"delay": VALUE, **BY_TIME}, rare=True
    ).option(
        None, "nsys starts to record this many seconds after its start, instead of at the profiled steps"
    )
    capture_duration: Seconds | None = value(
        "--capture-duration", metavar="S", free=True, nsys={"duration": VALUE, **BY_TIME}, rare=True
    ).option(
        None, "nsys records for this many seconds, instead of the profiled steps; the training continues"
    )
    nic_metrics: bool = switch("--nic-metrics", free=True, nsys={"nic-metrics": "true"}, rare=True).option(
        False, "nsys samples the network adapters too"
    )
    python_sampling: int | None = Flag(
        {"--python-sampling": 1000, "--python-sampling-frequency": VALUE},
        metavar="HZ",
        help="nsys samples Python's call stacks 1000 times per second; the second flag sets another rate",
        nsys={"python-sampling": "true", "python-sampling-frequency": VALUE},
        free=True,
        rare=True,
    ).option(None, "samples of Python's call stacks per second", ge=1, le=2000)
    python_trace: str | None = value(
        "--python-trace", metavar="NAME|FILE", free=True, nsys={"python-functions-trace": VALUE}, rare=True
    ).option(
        None,
        "nsys records calls of the Python functions that a file lists; pytorch: the harness's list",
        min_length=1,
    )
    nsys2prv: bool = switch("--nsys2prv", free=True).option(
        False, "convert the reports to a Paraver trace afterwards"
    )
    faults: tuple[FaultText, ...] = value(
        "--fault",
        metavar="NAME[,KEY=VALUE…]",
        tag="fault-",
        tag_place=FAULT,
        tag_if_on=True,
        train="--fault",
        repeats=True,
    ).option((), "inject a fault, to see what it looks like; `slurm.sh faults` lists them")

    @property
    def recorded_by_time(self) -> bool:
        """Whether nsys records by the clock, whatever step the training is at."""
        return self.capture_delay is not None or self.capture_duration is not None

    @property
    def window(self) -> ProfileWindow:
        return ProfileWindow(self.skip_steps, self.wait_steps, self.warmup_steps, self.active_steps)

    @property
    def fault_setup(self) -> Setup:
        """What faults must fit to."""
        return Setup(self.exercise, self.world_size, replicas=self.world_size)

    def broken_rules(self) -> Iterator[Broken]:
        yield from super().broken_rules()
        for sentence in misfits(map(parse_fault, self.faults), self.fault_setup):
            yield Broken({"faults", "nodes", "gpus_per_node", "steps", "active_steps"}, sentence)
        if self.nsys2prv and self.profiler == "none":
            yield Broken(
                {"nsys2prv", "profiler"},
                "--nsys2prv converts what the profiler recorded, and --no-profile records nothing: drop one",
            )
        if self.profiler in ("torch", "none"):
            instead = (
                "--no-profile records nothing"
                if self.profiler == "none"
                else "--profiler torch records instead"
            )
            for field, flag in for_nsys(self).items():
                yield Broken({"profiler", field}, f"{flag} is for nsys, and {instead}: drop one")
