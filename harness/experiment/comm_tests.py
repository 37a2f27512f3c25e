"""Exercise 0: the communication tests. Knows no other exercise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from harness.experiment import nccl
from harness.experiment.base import Experiment
from harness.experiment.options import BrokenRule, Flag, tags_of, value

HEADINGS = {None: "Communication tests", "health": "Health check"}


class CommTests(Experiment):
    """Exercise 0: is the machine wired as it should be, and how fast is it."""

    title: ClassVar[str] = "communication tests"
    folder: ClassVar[str] = "exercise_0_Communication_Tests"
    short: ClassVar[bool] = True
    without_trace: ClassVar[str] = "the tests timed themselves"

    exercise: Annotated[Literal[0], value("-e", "--exercise", group="where")] = 0
    max_bytes: int | None = value("--max-bytes", train="--max-bytes").option(
        None, "largest message in bytes (default: 1 GiB on GPUs, 16 MiB on CPUs)", ge=1
    )

    only: Literal["health"] | None = Flag(
        {"--health": "health"},
        rare=True,
        help="instead of the collectives a check of each GPU, node and link before a long run, and how much "
        "communication overlaps with computation",
    ).option(None, "the check that runs instead of the collectives")
    slow_rank: int | None = value("--slow-rank", metavar="RANK", train="--slow-rank", rare=True).option(
        None, "with --health: this rank does everything at a quarter of its speed, to see the check fail", ge=0
    )

    # Its messages have all sizes, and are few: it can afford a line for each.
    nccl_debug: bool = nccl.log_flag("TUNING").option(False, nccl.LOG_MEANING)

    @property
    def heading(self) -> str:
        return HEADINGS[self.only]

    def name(self, model_name: str | None) -> tuple[str, str]:
        return HEADINGS[self.only].lower().replace("communication", "comm").replace(" ", "-"), tags_of(self)

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.only is not None and self.max_bytes is not None:
            sentence = "--max-bytes is the largest message of the collectives, and --health runs none of them: drop one"
            yield BrokenRule({"only", "max_bytes"}, sentence)
        if self.slow_rank is None:
            return
        if self.only is None:
            yield BrokenRule(
                {"only", "slow_rank"}, "--slow-rank slows the probes of --health: add --health, or drop it"
            )
        elif self.world_size is not None and self.slow_rank >= self.world_size:
            last = self.world_size - 1
            sentence = f"--slow-rank {self.slow_rank}: the ranks are 0 to {last}: the nearest is {last}"
            yield BrokenRule({"slow_rank", "nodes", "gpus_per_node"}, sentence)
