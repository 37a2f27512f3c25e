"""What is asked: one Pydantic class per exercise, a union discriminated by `exercise`.

Knows nothing of any cluster, path or launcher. A field is an option (see options.py); a rule between fields is a
method that names the fields it joins, so that all broken rules can be told at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from harness.experiment.options import VALUE, Flag, options_of, switch, value

# More than anybody profiles, and small enough for every 32-bit count behind it.
MOST = 10_000_000
Count = Annotated[int, Field(ge=1, le=MOST)]
PRECISIONS = {"--mixed-precision": True, "--no-mixed-precision": False}


class Broken(NamedTuple):
    """A rule that does not hold: the fields it joins and the sentence for the user."""

    fields: frozenset[str]
    sentence: str


class Window(NamedTuple):
    """The profiled steps: batches before it (`skip`, `wait`, `warmup`) and in it (`active`)."""

    skip: int
    wait: int
    warmup: int
    active: int

    @property
    def steps(self) -> int:
        """Batches until the window closes."""
        return sum(self)


class Experiment(BaseModel):
    """What every exercise has: a place in the workshop, a size, an observer."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    title: ClassVar[str]
    folder: ClassVar[str]

    exercise: Annotated[
        int,
        Field(description="0 communication tests, 1 DDP, 2 DeepSpeed ZeRO, 3 Megatron TP/PP"),
        value("-e", "--exercise", group="where"),
    ]
    nodes: Annotated[
        int,
        Field(ge=1, le=10_000, description="number of nodes"),
        value("-n", "--nodes", tag="n", group="where"),
    ] = 1
    gpus_per_node: Annotated[
        int | None,
        Field(ge=1, le=64, description="GPUs (on a CPU machine: processes) per node"),
        value("-g", "--gpus-per-node", tag="g", group="where"),
    ] = None
    monitor_hz: Annotated[
        float,
        Field(ge=0.01, le=10, description="samples per second of the GPU monitor"),
        value("--monitor-hz", metavar="HZ", group="where"),
    ] = 1.0

    @property
    def world_size(self) -> int | None:
        """Number of ranks, once the GPUs per node are known."""
        return None if self.gpus_per_node is None else self.nodes * self.gpus_per_node

    def broken_rules(self) -> Iterator[Broken]:
        """Every rule between fields that does not hold."""
        yield from ()


class CommTests(Experiment):
    """Exercise 0: is the machine wired as it should be, and how fast is it."""

    title: ClassVar[str] = "communication tests"
    folder: ClassVar[str] = "exercise_0_Communication_Tests"

    exercise: Annotated[Literal[0], value("-e", "--exercise", group="where")] = 0
    max_bytes: Annotated[
        int | None,
        Field(
            ge=1,
            description="largest message in bytes (default: 1 GiB on GPUs, 16 MiB on CPUs)",
        ),
        value("--max-bytes", train="--max-bytes"),
    ] = None


class Training(Experiment):
    """What the training exercises share."""

    model: Annotated[
        str | None,
        Field(min_length=1, description="a name from configs/models, a model file, or a checkpoint folder"),
        value("--model", metavar="NAME|PATH"),
    ] = None
    random_weights: Annotated[
        bool,
        Field(description="start from random weights: the profile is the same and no licence is needed"),
        switch("--random-weights", train="--random-weights"),
    ] = False
    data: Annotated[
        str | None,
        Field(
            min_length=1,
            description="instruction data in Alpaca's JSON shape (default: the site's, else ours)",
        ),
        value("--data", metavar="FILE"),
    ] = None
    steps: Annotated[
        int | None,
        Field(ge=1, le=MOST, description="batches in all (default: until the profiling window closes)"),
        value("--steps", train="--steps"),
    ] = None
    seq_length: Annotated[
        int | None,
        Field(ge=8, le=MOST, description="tokens per sequence (default: the model's)"),
        value("--seq-length", train="--seq-length"),
    ] = None
    mixed_precision: Annotated[
        bool,
        Field(description="compute in bf16, keep fp32 master weights"),
        Flag(PRECISIONS, tag="mixed", train="--mixed-precision"),
    ] = False
    micro_batch_size: Annotated[
        Count | None,
        Field(description="samples per rank and forward pass (default: the model's)"),
        value("--micro-batch-size", tag="mbs", train="--micro-batch-size"),
    ] = None
    activation_checkpointing: Annotated[
        bool,
        Field(description="recompute activations in the backward pass; needs --mixed-precision"),
        switch("--activation-checkpointing", tag="actckpt", train="--activation-checkpointing"),
    ] = False
    skip_steps: Annotated[
        int,
        Field(ge=0, le=MOST, description="batches before the profiler is set up"),
        value("--skip-steps", train="--skip"),
    ] = 10
    wait_steps: Annotated[
        int,
        Field(ge=0, le=MOST, description="batches the profiler waits"),
        value("--wait-steps", train="--wait"),
    ] = 1
    warmup_steps: Annotated[
        int,
        Field(ge=0, le=MOST, description="batches the profiler warms up"),
        value("--warmup-steps", train="--warmup"),
    ] = 5
    active_steps: Annotated[
        Count, Field(description="batches that are profiled"), value("--active-steps", train="--active")
    ] = 20
    seed: Annotated[
        int,
        # NumPy takes twice as much, and Megatron-LM adds to it by rank.
        Field(ge=0, le=2**31 - 1, description="seed of weights and sample order"),
        value("--seed", train="--seed"),
    ] = 1234
    profiler: Annotated[
        Literal["auto", "nsys", "torch", "none"],
        Field(
            description="nsys, torch (torch.profiler), none; auto: nsys if the site has it and NVIDIA GPUs, else torch"
        ),
        Flag({"--profiler": VALUE, "--no-profile": "none"}, metavar="NAME"),
    ] = "auto"
    nsys2prv: Annotated[
        bool, Field(description="convert the reports to a Paraver trace afterwards"), switch("--nsys2prv")
    ] = False

    def _spelling(self, field: str) -> str:
        """A flag as this exercise writes it."""
        return next(option.spelling for option in options_of(type(self)) if option.field == field)

    @property
    def window(self) -> Window:
        return Window(self.skip_steps, self.wait_steps, self.warmup_steps, self.active_steps)

    def broken_rules(self) -> Iterator[Broken]:
        yield from super().broken_rules()
        if self.activation_checkpointing and self.mixed_precision is False:
            yield _broken(
                "--activation-checkpointing needs --mixed-precision: add it",
                "activation_checkpointing",
                "mixed_precision",
            )
        if self.nsys2prv and self.profiler == "none":
            yield _broken(
                "--nsys2prv converts what the profiler recorded, and --no-profile records nothing: drop one",
                "nsys2prv",
                "profiler",
            )
        if self.profiler != "none" and self.steps is not None and self.steps < self.window.steps:
            yield _broken(
                f"{self._spelling('steps')} {self.steps} ends before the profiling window closes "
                f"({' + '.join(map(str, self.window))} = {self.window.steps} steps): "
                "raise it, lower --skip-steps or --active-steps, or use --no-profile",
                "steps",
                "skip_steps",
                "wait_steps",
                "warmup_steps",
                "active_steps",
                "profiler",
            )


Accumulation = Annotated[
    Count,
    Field(description="micro-batches per optimizer step"),
    value("--gradient-accumulation-steps", tag="gas", train="--gradient-accumulation-steps"),
]


class DDP(Training):
    """Exercise 1: data parallelism with PyTorch's DDP through accelerate."""

    title: ClassVar[str] = "DDP"
    folder: ClassVar[str] = "exercise_1_DDP"

    exercise: Annotated[Literal[1], value("-e", "--exercise", group="where")] = 1
    gradient_accumulation_steps: Accumulation = 1
    slow_dataloading: Annotated[
        bool,
        Field(description="tokenise on the fly in the main process, without workers or pinned memory"),
        switch("--slow-dataloading", tag="slowdl", train="--slow-dataloading"),
    ] = False
    script: Annotated[
        str | None,
        Field(min_length=1, description="train with this script: a file of the exercise's folder, or a path"),
        value("--script", metavar="FILE", tag="script"),
    ] = None


class DeepSpeed(Training):
    """Exercise 2: sharded data parallelism with DeepSpeed ZeRO through accelerate."""

    title: ClassVar[str] = "DeepSpeed ZeRO"
    folder: ClassVar[str] = "exercise_2_DeepSpeed"

    exercise: Annotated[Literal[2], value("-e", "--exercise", group="where")] = 2
    gradient_accumulation_steps: Accumulation = 1
    overlap_comm: Annotated[
        bool,
        Field(description="do not overlap communication with computation"),
        switch("--ds-no-overlap", sets=False, tag="commoverlap", deepspeed="overlap_comm"),
    ] = True
    heavy_comm: Annotated[
        bool,
        Field(
            description="fewer, later messages; needs --mixed-precision, excludes --activation-checkpointing"
        ),
        switch("--ds-heavy-comm", tag="heavycomm", deepspeed="heavy_comm"),
    ] = False
    hpz_partition: Annotated[
        int | None,
        Field(
            ge=1, le=MOST, description="ZeRO++ secondary partition size in ranks (default: the GPUs per node)"
        ),
        value("--ds-hpz-partition", tag="hpz", deepspeed="hpz"),
    ] = None
    zero_stage: Annotated[
        Literal[2, 3],
        Field(description="ZeRO stage 2 (default: stage 3)"),
        switch("--ds-stage2", sets=2, tag="ZeRO", deepspeed="stage"),
    ] = 3

    def broken_rules(self) -> Iterator[Broken]:
        yield from super().broken_rules()
        if self.heavy_comm and not self.mixed_precision:
            yield _broken("--ds-heavy-comm needs --mixed-precision: add it", "heavy_comm", "mixed_precision")
        if self.heavy_comm and self.activation_checkpointing:
            yield _broken(
                "--ds-heavy-comm and --activation-checkpointing exclude each other: drop one",
                "heavy_comm",
                "activation_checkpointing",
            )
        if self.heavy_comm and not self.overlap_comm:
            yield _broken(
                "--ds-heavy-comm and --ds-no-overlap both set the buckets: drop one",
                "heavy_comm",
                "overlap_comm",
            )
        if self.zero_stage == 2 and self.hpz_partition is not None:
            yield _broken(
                "--ds-hpz-partition partitions parameters, which stage 2 does not shard: drop it or --ds-stage2",
                "zero_stage",
                "hpz_partition",
            )
        if self.world_size and self.hpz_partition and self.world_size % self.hpz_partition:
            yield _broken(
                f"--ds-hpz-partition {self.hpz_partition} does not divide the world size {self.world_size} "
                f"(-n {self.nodes} × -g {self.gpus_per_node}): use one of {_divisors(self.world_size)}",
                "hpz_partition",
                "nodes",
                "gpus_per_node",
            )


class Megatron(Training):
    """Exercise 3: tensor and pipeline parallelism with Megatron."""

    title: ClassVar[str] = "Megatron TP/PP"
    folder: ClassVar[str] = "exercise_3_MegatronLM"

    exercise: Annotated[Literal[3], value("-e", "--exercise", group="where")] = 3
    tp: Annotated[Count | None, Field(description="tensor-parallel size (default: what is left of a node)"),
                  value("--tp", tag="tp", train="--tp")] = None  # fmt: skip
    pp: Annotated[
        Count, Field(description="pipeline-parallel size"), value("--pp", tag="pp", train="--pp")
    ] = 1
    cp: Annotated[Count, Field(description="context-parallel size"), value("--cp", train="--cp")] = 1
    vpp: Annotated[
        Count,
        Field(description="virtual pipeline stages per rank (interleaved schedule)"),
        value("--vpp", train="--vpp"),
    ] = 1
    ep: Annotated[
        Count,
        Field(description="expert-parallel size (mixture-of-experts models)"),
        value("--ep", train="--ep"),
    ] = 1
    global_batch_size: Annotated[
        Count | None,
        Field(description="samples per iteration over all ranks (default: 128; on CPU 8 micro-batches)"),
        value("--global-batch-size", tag="gbs", train="--global-batch-size"),
    ] = None
    engine: Annotated[
        Literal["megatron-core", "megatron-lm"],
        Field(description="our loop on megatron-core, or pretrain_gpt.py of the NeMo container"),
        value("--engine", metavar="NAME"),
    ] = "megatron-core"
    mixed_precision: Annotated[
        bool | None,
        Field(description="compute in bf16, keep fp32 master weights (default: on GPUs, not on CPU)"),
        Flag(PRECISIONS, tag="mixed", train="--mixed-precision"),
    ] = None  # type: ignore[assignment]  # until the device is known
    data_path: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Megatron .bin/.idx prefix (default: the site's, else built from our set)",
        ),
        value("--data-path", metavar="PREFIX"),
    ] = None
    steps: Annotated[
        int | None,
        Field(ge=1, le=MOST, description="iterations in all (default: until the profiling window closes)"),
        value("--iters", "--steps", train="--iters"),
    ] = None
    skip_steps: Annotated[
        int,
        Field(ge=0, le=MOST, description="iterations before the profiler is set up"),
        value("--skip-steps", train="--skip"),
    ] = 3
    warmup_steps: Annotated[
        int,
        Field(ge=0, le=MOST, description="iterations the profiler warms up"),
        value("--warmup-steps", train="--warmup"),
    ] = 1
    active_steps: Annotated[
        Count, Field(description="iterations that are profiled"), value("--active-steps", train="--active")
    ] = 5

    def broken_rules(self) -> Iterator[Broken]:
        yield from super().broken_rules()
        world = self.world_size
        if world is None:
            return
        model_parallel = (self.tp or 1) * self.pp * self.cp
        if self.vpp > 1 and self.pp == 1:
            yield _broken(
                f"--vpp {self.vpp} interleaves pipeline stages and --pp is 1: raise --pp", "vpp", "pp"
            )
        if world % model_parallel:
            yield _broken(
                f"--tp {self.tp or 1} × --pp {self.pp} × --cp {self.cp} = {model_parallel} does not divide the world "
                f"size {world} (-n {self.nodes} × -g {self.gpus_per_node}): make it one of {_divisors(world)}",
                *_PARALLEL,
            )
        else:
            yield from self._broken_batch_rules(world // model_parallel)

    def _broken_batch_rules(self, data_parallel: int) -> Iterator[Broken]:
        batch = (self.micro_batch_size or 1) * data_parallel
        if self.micro_batch_size and self.global_batch_size and self.global_batch_size % batch:
            yield _broken(
                f"--global-batch-size {self.global_batch_size} is not a multiple of micro-batch size × data parallel "
                f"size = {self.micro_batch_size} × {data_parallel} = {batch}: "
                f"try {max(batch, round(self.global_batch_size / batch) * batch)}",
                *("global_batch_size", "micro_batch_size", *_PARALLEL),
            )
        if self.ep > 1 and data_parallel * self.cp % self.ep:
            yield _broken(
                f"--ep {self.ep} does not divide the {data_parallel * self.cp} data- and context-parallel ranks: "
                f"use one of {_divisors(data_parallel * self.cp)}",
                *("ep", *_PARALLEL),
            )


_PARALLEL = ("tp", "pp", "cp", "nodes", "gpus_per_node")

EXERCISES: dict[int, type[Experiment]] = {0: CommTests, 1: DDP, 2: DeepSpeed, 3: Megatron}
AnyExperiment = Annotated[CommTests | DDP | DeepSpeed | Megatron, Field(discriminator="exercise")]


def _broken(sentence: str, *fields: str) -> Broken:
    return Broken(frozenset(fields), sentence)


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)
