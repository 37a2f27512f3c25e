"""Exercise 0: the communication tests. Knows no other exercise."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from harness.experiment import nccl
from harness.experiment.base import Experiment
from harness.experiment.options import tags_of, value


class CommTests(Experiment):
    """Exercise 0: is the machine wired as it should be, and how fast is it."""

    title: ClassVar[str] = "communication tests"
    folder: ClassVar[str] = "exercise_0_Communication_Tests"
    short: ClassVar[bool] = True
    without_trace: ClassVar[str] = "the benchmark timed itself, and it checked each result"

    exercise: Annotated[Literal[0], value("-e", "--exercise", group="where")] = 0
    max_bytes: int | None = value("--max-bytes", train="--max-bytes").option(
        None, "largest message in bytes (default: 1 GiB on GPUs, 16 MiB on CPUs)", ge=1
    )

    # Its messages have all sizes, and are few: it can afford a line for each.
    nccl_debug: bool = nccl.log_flag("TUNING").option(False, nccl.LOG_MEANING)

    @property
    def heading(self) -> str:
        return "Communication tests"

    def name(self, model: str | None) -> tuple[str, str]:
        return "comm-tests", tags_of(self)
