"""A training of the user's own: a script, a module or a program that was not written for the harness. Knows what was
typed and nothing of what it trains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.common.paths import COMMAND
from harness.common.run_folder.profile_window import ProfileWindow
from harness.experiment.base import Count, CountOrZero
from harness.experiment.options import BrokenRule, setting, switch, tags_of, value
from harness.experiment.training import ProfiledTraining

Launcher = Literal["torchrun", "accelerate", "deepspeed", "python"]
Form = Literal["script", "module", "command"]

# Unknown scripts differ: some warm up slowly, and some take few steps.
USUAL_WINDOW = ProfileWindow(skip=5, wait=0, warmup=2, active=10)
HOW_TO_TYPE = f"{COMMAND} run -g 2 -- train.py --lr 1e-4"
_LONGEST_NAME = 60  # characters: a file system takes 255 for the whole name


class OwnTraining(ProfiledTraining):
    """A training of the user's own, as it is: `slurm.sh run -- train.py`."""

    title: ClassVar[str] = "own training"
    folder: ClassVar[str] = "own"

    exercise: Annotated[Literal["own"], Field(description="a training of the user's own")] = "own"
    command: tuple[str, ...] = setting((), "the words after --: a script, -m and a module, or a program")
    start_in: str = setting("", "the folder where it was typed and where it starts")
    launcher: Launcher | None = value("--launcher", metavar="NAME", free=True).option(
        None,
        "torchrun, accelerate, deepspeed or python: what starts the ranks of a script or module "
        "(default: torchrun, and python for a single rank)",
    )
    python: str | None = value("--python", metavar="PATH", free=True, path=True).option(
        None,
        "the Python of the training (default: of the active environment, else of the site's container, else ours)",
        min_length=1,
    )
    accelerate_config: str | None = value(
        "--accelerate-config", metavar="FILE", free=True, path=True, rare=True
    ).option(None, "accelerate's settings (default: your `accelerate config`, else ours)", min_length=1)
    skip_steps: CountOrZero = value("--skip-steps", free=True).option(
        USUAL_WINDOW.skip, "steps before the profiler is set up"
    )
    wait_steps: CountOrZero = value("--wait-steps", free=True, rare=True).option(
        USUAL_WINDOW.wait, "steps for which the profiler waits"
    )
    warmup_steps: CountOrZero = value("--warmup-steps", free=True).option(
        USUAL_WINDOW.warmup, "steps for which the profiler warms up"
    )
    active_steps: Count = value("--active-steps", free=True).option(USUAL_WINDOW.active, "steps that are profiled")
    memory: bool = switch("--memory", tag="memory", tag_if_on=True, free=True).option(
        False, "record who holds memory, and the line that keeps more of it in each step, in place of a profile"
    )

    @property
    def form(self) -> Form:
        """What the first word is."""
        first = self.command[0] if self.command else ""
        return "module" if first == "-m" else "script" if first.endswith(".py") else "command"

    @property
    def program(self) -> str:
        """The script's path, the module's name or the command, as typed."""
        return "".join(self.command[1:2] if self.form == "module" else self.command[:1])

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.command[2 if self.form == "module" else 1 :]

    @property
    def label(self) -> str:
        """A short name for people and files: the script's without its ending, the module's last word, the program's."""
        last = self.program.rpartition(".")[2] if self.form == "module" else PurePosixPath(self.program).name
        return last.removesuffix(".py")

    @property
    def heading(self) -> str:
        return f"Own training: {self.label}"

    @property
    def job_name(self) -> str:
        return self.name(None)[0]

    def name(self, model_name: str | None) -> tuple[str, str]:
        safe = re.sub(r"[^\w-]", "_", self.label, flags=re.ASCII).strip("-_")
        return safe[:_LONGEST_NAME] or "training", tags_of(self)

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.launcher is not None and self.form == "command":
            yield BrokenRule(
                {"launcher"},
                f"--launcher {self.launcher} starts a script (*.py) or a module (-m), and {self.program} is started "
                "as it is: drop one",
            )
        if self.memory and self.profiler in ("nsys", "torch"):
            yield BrokenRule(
                {"memory", "profiler"},
                f"--memory and --profiler {self.profiler} would each be in the other's record: drop one",
            )
        if self.accelerate_config is not None and self.launcher != "accelerate":
            yield BrokenRule(
                {"accelerate_config", "launcher"}, "--accelerate-config is a file of --launcher accelerate: add that"
            )
        if self.nsys_per == "rank" and (self.form == "command" or self.launcher == "python"):
            yield BrokenRule(
                {"nsys_per", "launcher"},
                "--nsys-per rank needs a launcher that starts the ranks (torchrun, accelerate, deepspeed): drop it",
            )
