"""Exercise 1: data parallelism with DDP. Knows no other exercise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.experiment.advice import IDLE_FOR_DATA, Advice, Change, MeasuredRun, Sharding
from harness.experiment.base import Accumulation, Broken, NonBlocking, PinMemory, Training, Workers
from harness.experiment.options import switch, value

BucketSize = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]


class DDP(Training):
    """Exercise 1: data parallelism with PyTorch's DDP through accelerate."""

    title: ClassVar[str] = "DDP"
    folder: ClassVar[str] = "exercise_1_DDP"
    default_model: ClassVar[str] = "llama-3.2-1b"

    exercise: Annotated[Literal[1], value("-e", "--exercise", group="where")] = 1
    gradient_accumulation_steps: Accumulation = 1
    dataloader_workers: Workers = None
    pin_memory: PinMemory = None
    non_blocking: NonBlocking = None
    bucket_cap_mb: BucketSize | None = value(
        "--bucket-cap-mb", metavar="MIB", tag="bucket", train="--bucket-cap-mb", rare=True
    ).option(None, "size of DDP's gradient buckets in MiB (default: DDP's own, 25 after a first of 1)")
    slow_dataloading: bool = switch(
        "--slow-dataloading", tag="slowdl", tag_if_on=True, train="--slow-dataloading"
    ).option(False, "tokenise on the fly in the main process, without workers or pinned memory")
    script: str | None = value("--script", metavar="FILE", tag="script").option(
        None, "train with this script: a file of the exercise's folder, or a path", min_length=1
    )

    @property
    def sharding(self) -> Sharding:
        return "none"

    def broken_rules(self) -> Iterator[Broken]:
        yield from super().broken_rules()
        if self.slow_dataloading and self.dataloader_workers:
            yield Broken(
                {"slow_dataloading", "dataloader_workers"},
                "--slow-dataloading loads without workers, and --dataloader-workers asks for some: drop one",
            )
        if self.slow_dataloading and self.pin_memory:
            yield Broken(
                {"slow_dataloading", "pin_memory"},
                "--slow-dataloading loads into pageable memory, and --pin-memory asks for pinned: drop one",
            )

    def on_purpose(self, cause: Literal["communication", "data"], seen: MeasuredRun) -> Advice | None:
        if cause != "data" or not self.slow_dataloading:
            return None
        text = "let worker processes prepare the batches (the default)"
        return Advice(IDLE_FOR_DATA, (Change(text, {"slow_dataloading": False}),))

    def send_less(self, seen: MeasuredRun) -> Advice:
        """More micro-batches per exchange of gradients."""
        now = self.gradient_accumulation_steps
        how_often = "after every micro-batch" if now == 1 else "often"
        text = "exchange them less often, by accumulating gradients"
        return Advice(
            f"Gradients are exchanged {how_often}.", (Change(text, {"gradient_accumulation_steps": 4 * now}),)
        )
