"""What the exercises' trainings share: a model, its data, its batch and its precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from harness.common.errors import RequestError, nearest
from harness.common.faults.fault import Setup, misfits, parse_fault
from harness.common.model.model_config import Precision
from harness.common.paths import COMMAND
from harness.common.run_folder.module_ranges import LAYERS, module_depth
from harness.common.run_folder.profile_window import FINE_TUNING, ProfileWindow
from harness.experiment.base import MOST, Count, CountOrZero, Experiment
from harness.experiment.options import BATCH, FAULT, VALUE, BrokenRule, Flag, for_nsys, options_of, switch, value

Seconds = Annotated[int, Field(ge=1, le=MOST)]  # nsys reads a fraction as 0
# The options of nsys by which it waits for the profiled steps: left out, it records by the clock.
BY_TIME: Mapping[str, object] = dict.fromkeys(("capture-range", "capture-range-end", "nvtx-capture"))

# The words that are the field's values of the flag without a word, and with --no-.
SWITCHES: Mapping[str, bool] = {"fp32": False, "bf16": True}
PRECISIONS = Flag(
    {"--mixed-precision": VALUE, "--no-mixed-precision": False},
    takes=get_args(Precision),
    words=SWITCHES,
    alone="bf16",
    metavar="[NAME]",
    help="compute in bf16, keep fp32 master weights; or in fp32, tf32, and in exercise 1 fp8",
    tag="mixed",
    free=True,
    train="--mixed-precision",
)


def _canonical(text: str) -> str:
    try:
        return str(parse_fault(text))
    except RequestError as error:
        raise ValueError(str(error)) from None


FaultText = Annotated[str, AfterValidator(_canonical)]


def _depth(word: object) -> object:
    try:
        return module_depth(str(word))
    except RequestError as error:
        raise ValueError(str(error)) from None


ModuleDepth = Annotated[str, BeforeValidator(_depth)]


class ProfiledTraining(Experiment):
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
    ).option("auto", "nsys, torch (torch.profiler), none; auto: nsys if the site has it and NVIDIA GPUs, else torch")
    nsys_per: Literal["node", "rank"] = value(
        "--nsys-per", metavar="WHAT", free=True, nsys_only=True, rare=True
    ).option("node", "node: one nsys and one report for all ranks of a node; rank: one for each rank")
    capture_delay: Seconds | None = value(
        "--capture-delay", metavar="S", free=True, nsys={"delay": VALUE, **BY_TIME}, rare=True
    ).option(None, "nsys starts to record this many seconds after its start, instead of at the profiled steps")
    capture_duration: Seconds | None = value(
        "--capture-duration", metavar="S", free=True, nsys={"duration": VALUE, **BY_TIME}, rare=True
    ).option(None, "nsys records for this many seconds, instead of the profiled steps; the training continues")
    nic_metrics: bool = switch("--nic-metrics", free=True, nsys={"nic-metrics": "true"}, rare=True).option(
        False, "nsys samples the network adapters too"
    )
    # Older records have its frequency.
    python_sampling: Annotated[bool, BeforeValidator(bool)] = switch(
        "--python-sampling", free=True, nsys={"python-sampling": "true"}, rare=True
    ).option(False, "nsys samples Python's call stacks, at the rate of its option set, else 1000 times per second")
    python_trace: str | None = value(
        "--python-trace", metavar="NAME|FILE", free=True, nsys={"python-functions-trace": VALUE}, rare=True
    ).option(
        None, "nsys records calls of the Python functions that a file lists; pytorch: the harness's list", min_length=1
    )
    module_ranges: ModuleDepth | None = Flag(
        {"--module-ranges": LAYERS, "--module-depth": VALUE},
        metavar="N|all",
        help="mark the forward and backward pass of every module as a range, down to the parts of the layers; the "
        "second flag: down to modules inside of N others, or all",
        free=True,
        train="--module-ranges",
        rare=True,
    ).option(None, "down to which modules their passes are ranges: layers (their parts too), a number of levels, all")
    nsys_options: str | None = value(
        "--nsys-options", metavar="NAME|FILE", free=True, nsys_only=True, rare=True
    ).option(
        None,
        "the set of nsys's options: a name of configs/nsys (full: all that NVIDIA and the course recommend), or a file",
        min_length=1,
    )
    nsys2prv: bool | Literal["compress"] = Flag(
        {"--nsys2prv": True, "--nsys2prv-compress": "compress"}, free=True
    ).option(False, "make a Paraver trace afterwards, on a cluster's GPUs by a job of its own; compress: as .prv.gz")
    faults: tuple[FaultText, ...] = value(
        "--fault",
        metavar="NAME[,KEY=VALUE…]",
        tag="fault-",
        tag_place=FAULT,
        tag_if_on=True,
        train="--fault",
        repeats=True,
    ).option((), f"inject a fault, to see what it looks like; `{COMMAND} help faults` lists them")

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

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        for sentence in misfits(map(parse_fault, self.faults), self.fault_setup):
            yield BrokenRule({"faults", "nodes", "gpus_per_node", "steps", "active_steps"}, sentence)
        if self.nsys2prv and self.profiler == "none":
            yield BrokenRule(
                {"nsys2prv", "profiler"},
                "--nsys2prv converts what the profiler recorded, and --no-profile records nothing: drop one",
            )
        if self.profiler in ("torch", "none"):
            instead = "--no-profile records nothing" if self.profiler == "none" else "--profiler torch records instead"
            for field, flag in for_nsys(self).items():
                yield BrokenRule({"profiler", field}, f"{flag} is for nsys, and {instead}: drop one")


def _switched(word: object) -> object:
    """A precision's name as the field has it."""
    names = get_args(Precision)
    if isinstance(word, str) and word not in names:
        near = nearest(word, names)
        hint = f": did you mean {near}?" if near else ""
        raise ValueError(f"got {word!r}, takes one of {', '.join(names)}{hint}")
    return SWITCHES.get(word, word) if isinstance(word, str) else word


MixedPrecision = Annotated[bool | Literal["tf32", "fp8"], BeforeValidator(_switched)]


class Mystery(BaseModel):
    """Faults that a run does not show. commitment: their checksum. faults: in no JSON, because the run keeps them in
    its hidden file (harness.common.faults.mystery); none: they are not known here."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)  # earlier versions: `sealed`, `subject`

    level: Literal[1, 2, 3]
    commitment: str
    faults: tuple[str, ...] = Field(default=(), exclude=True, repr=False)


class ModelTraining(Experiment):
    """What is trained: a base of its own, so that its flags come before those of the profiler."""

    model: str | None = value("--model", metavar="NAME|PATH", free=True).option(
        None, "a name from configs/models, a model file, or a checkpoint folder", min_length=1
    )
    random_weights: bool = switch("--random-weights", free=True, train="--random-weights").option(
        False, "start from random weights: the profile is the same and no licence is needed"
    )
    data: str | None = value("--data", metavar="FILE", free=True, compared=False, path=True).option(
        None, "instruction data in Alpaca's JSON format (default: the site's, else the harness's)", min_length=1
    )
    steps: Count | None = value("--steps", free=True, train="--steps").option(
        None, "total number of batches (default: until the profiling window closes)"
    )
    seq_length: int | None = value("--seq-length", free=True, train="--seq-length").option(
        None, "tokens per sequence (default: the model's)", ge=8, le=MOST
    )
    mixed_precision: MixedPrecision = PRECISIONS.option(
        False, "compute in bf16, keep fp32 master weights; tf32 and fp8: compute in these"
    )
    micro_batch_size: Count | None = value(
        "--micro-batch-size", tag="mbs", tag_place=BATCH, free=True, train="--micro-batch-size"
    ).option(None, "samples per rank and forward pass (default: the model's)")
    activation_checkpointing: bool = switch(
        "--activation-checkpointing", tag="actckpt", free=True, train="--activation-checkpointing"
    ).option(False, "recompute activations in the backward pass; needs --mixed-precision")


class Training(ProfiledTraining, ModelTraining):
    """What the training exercises share. `default_model` is trained if no other is requested."""

    default_model: ClassVar[str]
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "tf32", "bf16")

    exercise: Annotated[int, Field(description="number of the exercise"), value("-e", "--exercise", group="where")]
    # NumPy takes twice as much, and Megatron-LM adds to it by rank.
    seed: int = value("--seed", free=True, compared=False, train="--seed", rare=True).option(
        1234, "seed of weights and sample order", ge=0, le=2**31 - 1
    )
    checkpoint_every: Count | None = value(
        "--checkpoint-every", tag="ckpt", tag_if_on=True, train="--checkpoint-every", rare=True
    ).option(None, "write a checkpoint after each N-th batch, and keep the newest (default: none)")
    memory_snapshot: bool = switch(
        "--memory-snapshot", tag="memory", tag_if_on=True, train="--memory-snapshot", rare=True
    ).option(False, "record the memory by category, also when memory runs out")
    mystery: Mystery | None = None  # no flag sets it: `slurm.sh lesson mystery` draws it

    def name(self, model_name: str | None) -> tuple[str, str]:
        before, after = super().name(model_name)
        return before, after if self.mystery is None else f"{after}-mystery{self.mystery.level}"

    @property
    def precision(self) -> Precision:
        """What matrix products are computed in: with fp8 those of the layers, and all others in bf16."""
        asked = self.mixed_precision
        return asked if isinstance(asked, str) else "bf16" if asked else "fp32"

    @property
    def in_bf16(self) -> bool:
        return self.precision in ("bf16", "fp8")

    @property
    def _how_bf16(self) -> str:
        """What to type if a rule needs bf16."""
        return f"use bf16 in place of {self.precision}" if self.mixed_precision else "add it"

    @property
    def fault_setup(self) -> Setup:
        """What faults must fit to."""
        steps = self.window.end if self.steps is None else self.steps
        ranks, checkpoints = self.world_size, self.checkpoint_every is not None
        sizes = (self.micro_batch_size, steps)
        return Setup(self.exercise, ranks, *sizes, replicas=ranks, checkpoints=checkpoints)

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.precision not in self.precisions:
            yield BrokenRule(
                {"mixed_precision"},
                f"--mixed-precision {self.precision} is for exercise 1: exercise {self.exercise} computes in "
                f"{', '.join(self.precisions)}, and the nearest is --mixed-precision bf16",
            )
        if self.activation_checkpointing and self.mixed_precision in (False, "tf32"):
            yield BrokenRule(
                {"activation_checkpointing", "mixed_precision"},
                f"--activation-checkpointing needs --mixed-precision: {self._how_bf16}",
            )
        steps = self.window.end if self.steps is None else self.steps
        if self.checkpoint_every is not None and self.checkpoint_every > steps:
            yield BrokenRule(
                {"checkpoint_every", "steps", "skip_steps", "wait_steps", "warmup_steps", "active_steps"},
                f"--checkpoint-every {self.checkpoint_every} would write none in a training of {steps} steps: the "
                f"nearest is --checkpoint-every {steps}",
            )
        needs_window = self.profiler != "none" and not self.recorded_by_time
        if needs_window and self.steps is not None and self.steps < self.window.end:
            spelling = next(option.spelling for option in options_of(type(self)) if option.field == "steps")
            yield BrokenRule(
                {"steps", "skip_steps", "wait_steps", "warmup_steps", "active_steps", "profiler"},
                f"{spelling} {self.steps} ends before the profiling window closes "
                f"({' + '.join(map(str, astuple(self.window)))} = {self.window.end} steps): "
                "raise it, lower --skip-steps or --active-steps, or use --no-profile",
            )


class FineTuning(Training):
    """What the exercises share that train with accelerate: how batches are loaded, and their number per step."""

    gradient_accumulation_steps: Count = value(
        "--gradient-accumulation-steps", tag="gas", tag_place=BATCH, free=True, train="--gradient-accumulation-steps"
    ).option(1, "micro-batches per optimizer step")
    dataloader_workers: int | None = value(
        "--dataloader-workers", tag="workers", free=True, train="--dataloader-workers"
    ).option(
        None,
        "processes per rank that load data ahead; 0: the training loads it (default: 1 or 2, by cores)",
        ge=0,
        le=64,
    )
    pin_memory: bool | None = Flag(
        {"--pin-memory": True, "--no-pin-memory": False},
        tag="pin",
        train="--pin-memory",
        train_off="--no-pin-memory",
        gpus_only=True,
        rare=True,
    ).option(None, "collate batches into pinned memory (default: on GPUs)")
    non_blocking: bool | None = Flag(
        {"--non-blocking": True, "--no-non-blocking": False},
        tag="nonblocking",
        train="--non-blocking",
        train_off="--no-non-blocking",
        gpus_only=True,
        rare=True,
    ).option(None, "copy batches to the GPU without waiting (default); off: wait for each copy")
    compile: bool = switch("--compile", tag="compile", tag_if_on=True, train="--compile", rare=True).option(
        False, "compile the model with torch.compile in the first steps, which fuses its operators"
    )

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.compile and self.memory_snapshot:
            yield BrokenRule(
                {"compile", "memory_snapshot"},
                "--memory-snapshot looks at each operator, and PyTorch compiles nothing meanwhile: drop one",
            )
