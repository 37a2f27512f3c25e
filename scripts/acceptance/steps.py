"""The list of steps in its order, with the time that each may take. One line per step; the work is in step_*.py."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from failures import AcceptanceError
from place import Place
from results import Result


class Step(NamedTuple):
    """A step: its name on the command line, what it shows, its time limit, and the least time in which it can begin."""

    name: str
    title: str
    seconds: float
    least_s: float

    def work(self, place: Place, result: Result) -> None:
        """Do the step.

        Raises:
            LackError: this machine lacks something that the step needs.
            StepError: something failed.
        """
        function: Callable[[Place, Result], None] = getattr(import_module(f"step_{self.name}"), self.name)
        function(place, result)


STEPS = (
    Step("inventory", "what this machine is, and what it lacks", 75, 5),
    Step("training", "exercise 1 in five ways: step, speed, MFU and HFU", 270, 20),
    Step("monitor", "the monitor beside nvidia-smi, and its cost", 60, 20),
    Step("reports", "each report of step training compared with what must hold", 40, 10),
    Step("traces", "small anonymous traces with their truth", 60, 10),
    Step("others", "exercises 2 and 3 on one GPU", 180, 20),
    Step("compiled", "CUDA graphs, torch.compile and FP8", 120, 20),
    Step("nsys", "nsys: capture range, NVTX, our reader", 110, 20),
    Step("faults", "known faults, and what the report says of them", 120, 15),
)


def chosen(only: str | None) -> list[Step]:
    """The steps named in `only`, in the list's order; without `only` all. Raises AcceptanceError: unknown name."""
    if only is None:
        return list(STEPS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = [step.name for step in STEPS]
    for name in names:
        if name not in known:
            raise AcceptanceError(f"--only {name}: there is no such step; there are {', '.join(known)}")
    if not names:
        raise AcceptanceError(f"--only: name a step: {', '.join(known)}")
    return [step for step in STEPS if step.name in names]
