"""What a job trains, how much memory a rank needs for it and a device has, and the nearest request that fits."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.errors import RequestError
from harness.common.model.megatron_layout import Layout
from harness.common.model.model_config import ModelConfig, Precision, Sharding
from harness.common.paths import COMMAND
from harness.experiment.ddp import DDP
from harness.experiment.deepspeed import DeepSpeed
from harness.experiment.exercises import Experiment
from harness.experiment.megatron import Megatron
from harness.experiment.parse import command_of, validate
from harness.experiment.training import Training
from harness.launch.backends.registry import backend_of
from harness.launch.exercises.base import DeviceKind
from harness.launch.exercises.deepspeed import deepspeed_config
from harness.launch.job import Job
from harness.launch.submit import prepare
from harness.site.site import site_names
from harness.theory import peak as theory
from harness.theory.devices import TABLE, DevicePeaks, find_device
from harness.theory.memory import megatron_parameters, megatron_state_bytes, state_bytes
from harness.theory.peak import (
    Activations,
    Arithmetic,
    Peak,
    PeakBuffers,
    ZeroBuckets,
    chunks_in_flight,
    of_megatron,
    of_transformers,
    peak_of,
)

FRAMEWORK_BYTES = {"cuda": 1.5e9, "cpu": 0.6e9}
FRAMEWORK_SOURCE = {
    "cuda": "an assumption: context, kernels and NCCL's buffers take 1 to 2 GB (Hugging Face, Model training anatomy)",
    "cpu": "measured: PyTorch, transformers and the profiler take 0.45 to 0.8 GB",
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training, resolved.

    micro_batches: of one rank (of a replica, if ranks share a model) per optimizer step. micro_batches_per_step: of
    those in what the training counts as a step: one in exercises 1 and 2. sharding: None if Megatron's layout says
    it. bf16: the type of weights and messages; precision: of the products, as the device table has it. bucket_bytes:
    of DDP's gradients. lora: rank of the adapters that are trained, and not the weights.
    """

    exercise: int
    model: ModelConfig
    device: DeviceKind
    nodes: int
    ranks_per_node: int
    micro_batch: int
    seq_length: int
    micro_batches: int
    micro_batches_per_step: int
    steps: int
    precision: Precision
    bf16: bool
    checkpointing: bool
    layout: Layout
    sharding: Sharding | None = None
    hpz: int = 1
    buckets: ZeroBuckets | None = None
    bucket_bytes: float | None = None
    lora: int | None = None

    @property
    def parameters(self) -> int:
        """Of the whole model, adapters included."""
        return self.model.parameters() + (self.trained or 0)

    @property
    def trained(self) -> int | None:
        """Parameters of the adapters; None: all are trained."""
        return None if self.lora is None else self.model.lora_parameters(self.lora)

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all ranks in one step of the training's loop."""
        return self.micro_batch * self.seq_length * self.micro_batches_per_step * self.layout.dp

    @property
    def global_batch(self) -> int:
        """Samples of all replicas in one optimizer step."""
        return self.layout.dp * self.micro_batches * self.micro_batch


def workload_of(job: Job) -> Workload | None:
    """What the job trains; None: it trains nothing."""
    asked = job.experiment
    if not isinstance(asked, Training) or job.model is None or not asked.gpus_per_node:
        return None
    common: dict[str, Any] = {
        "exercise": asked.exercise,
        "model": job.model,
        "device": job.device,
        "nodes": asked.nodes,
        "ranks_per_node": asked.gpus_per_node,
        "micro_batch": asked.micro_batch_size or 1,
        "seq_length": asked.seq_length or 1,
        "steps": asked.steps or asked.window.end,
        "precision": asked.precision,
        "checkpointing": asked.activation_checkpointing,
    }
    return Workload(**(common | _own(asked, job)))


def _own(experiment: Training, job: Job) -> dict[str, Any]:
    """What one exercise adds."""
    if isinstance(experiment, Megatron):
        count = max(1, experiment.batch.num_microbatches(experiment.layout.dp))
        whole_batch = {"micro_batches": count, "micro_batches_per_step": count}
        return whole_batch | {"bf16": experiment.in_bf16, "layout": experiment.layout}
    fields: dict[str, Any] = {  # of a data-parallel training whose weights stay in float32
        "micro_batches": getattr(experiment, "gradient_accumulation_steps", 1),
        "micro_batches_per_step": 1,
        "bf16": False,
        "layout": Layout(experiment.world_size or 1),
        "sharding": experiment.sharding or "none",
    }
    if isinstance(experiment, DDP):
        fields |= {
            "bf16": experiment.fsdp is not None and experiment.in_bf16,
            "hpz": experiment.copy_ranks,
            "lora": experiment.lora,
        }
        fields |= {"bucket_bytes": experiment.bucket_cap_mb * 2**20} if experiment.bucket_cap_mb is not None else {}
    elif isinstance(experiment, DeepSpeed):
        zero = deepspeed_config(experiment, tiny=job.model is not None and job.model.tiny)["zero_optimization"]
        live = zero.get("stage3_max_live_parameters", 0)
        buckets = ZeroBuckets(zero["reduce_bucket_size"], live, zero["overlap_comm"])
        fields |= {"bf16": experiment.in_bf16, "hpz": experiment.copy_ranks, "buckets": buckets}
    return fields


def peak_memory(w: Workload, *, checkpointing: bool | None = None, framework: float | None = None) -> Peak:
    """The peak of the rank that needs most.

    checkpointing: instead of the workload's own. framework: bytes instead of the usual ones.
    """
    again = w.checkpointing if checkpointing is None else checkpointing
    base = FRAMEWORK_BYTES[w.device] if framework is None else framework
    if w.sharding is None:
        return max((of_stage(w, s, again, base) for s in {0, w.layout.pp - 1}), key=lambda peak: peak.highest.total)
    return _of_replica(w, w.sharding, again, base)


def _of_replica(w: Workload, sharding: Sharding, checkpointing: bool, framework: float) -> Peak:
    state = state_bytes(w.parameters, w.ranks, sharding=sharding, bf16=w.bf16, hpz=w.hpz, trained=w.trained)
    return peak_of(
        state,
        activations_of(w),
        _buffers(w, w.parameters if w.trained is None else w.trained),
        checkpointing=checkpointing,
        gradients_stay=sharding in ("zero3", "fsdp") or w.micro_batches > 1,
        framework=framework,
    )


def activations_of(w: Workload) -> Activations:
    """Of one micro-batch in a data-parallel rank."""
    arithmetic: Arithmetic = "bf16" if w.bf16 else "autocast" if w.precision in ("bf16", "fp8") else "fp32"
    tokens = w.micro_batch * w.seq_length
    copied = w.model.vocab_size * w.model.hidden_size if w.precision == "fp8" else matrix_parameters(w.model)
    return of_transformers(w.model, tokens, arithmetic=arithmetic, parameters=copied)


def matrix_parameters(model: ModelConfig) -> int:
    """Parameters that are multiplied with tokens: all but an untied embedding and the norms."""
    embedding = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    return model.parameters() - embedding - (2 * model.num_hidden_layers + 1) * model.hidden_size


def _buffers(w: Workload, parameters: int) -> PeakBuffers:
    on_gpu, largest = w.device == "cuda", largest_tensor(w)
    if w.sharding == "fsdp":
        unit = max(parameters - layers_of(w.model), layers_of(w.model) // w.model.num_hidden_layers)
        shard = largest / (w.hpz if w.hpz > 1 else w.ranks)
        return theory.of_fsdp(unit, shard, bf16=w.bf16, on_gpu=on_gpu)
    if w.buckets is None:
        return theory.of_ddp(parameters, w.ranks, largest, on_gpu=on_gpu)
    if w.sharding == "zero3":
        return theory.of_zero3(parameters, w.ranks, largest, w.buckets, bf16=w.bf16, on_gpu=on_gpu)
    return theory.of_zero2(parameters, w.ranks, w.buckets, bf16=w.bf16, on_gpu=on_gpu)


def layers_of(model: ModelConfig) -> int:
    """Parameters in the layers: without embedding, final norm and output."""
    outside = model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2) + model.hidden_size
    return model.parameters() - outside


def largest_tensor(w: Workload) -> int:
    """Parameters of the largest matrix."""
    return w.model.hidden_size * max(w.model.vocab_size, w.model.intermediate_size)


def of_stage(w: Workload, stage: int, checkpointing: bool, framework: float) -> Peak:
    layout = w.layout
    parameters = megatron_parameters(w.model, layout, stage)
    state = megatron_state_bytes(parameters, layout, bf16=w.bf16)
    shard = state.optimizer / (12 if w.bf16 else 8)
    activations = of_megatron(w.model, w.micro_batch, w.seq_length, layout, bf16=w.bf16, stage=stage)
    return peak_of(
        state,
        activations,
        theory.buffers_of_megatron(parameters, shard, largest_tensor(w) // layout.tp, on_gpu=w.device == "cuda"),
        checkpointing=checkpointing,
        in_flight=chunks_in_flight(layout.pp, stage, w.micro_batches, layout.vpp),
        gradients_stay=True,
        framework=framework,
    )


FITS, TIGHT = 0.9, 1.0  # shares of the memory: the allocator fragments it, and an estimate is within a tenth


class Capacity(NamedTuple):
    """Bytes for one rank and where that is from; None and the reason if it is not known."""

    total_bytes: float | None
    source: str


def capacity_of(job: Job, ranks_per_node: int) -> Capacity:
    if job.device == "cpu":
        return _of_this_machine(job, ranks_per_node)
    name = device_name(job)
    device = find_device(name)
    if getattr(job.experiment, "unified_memory", False):
        return Capacity(None, "with --unified-memory what does not fit on the GPU is in the host's memory")
    if name is None:
        return Capacity(None, f"site {job.site.name} does not say what GPUs it has (gpus.name), so there is no verdict")
    if device is None or device.memory_bytes is None:
        return Capacity(None, f"configs/devices.yaml has no memory for {name!r}, so there is no verdict")
    return Capacity(device.memory_bytes, f"{name}: {device.memory_gib:g} GiB, {TABLE}")


def _of_this_machine(job: Job, ranks_per_node: int) -> Capacity:
    if not backend_of(job.site).RUNS_HERE:
        return Capacity(None, f"the memory of a CPU node of {job.site.name} is not known here")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Capacity(
        total / ranks_per_node, f"this machine's {total / 1e9:.1f} GB, shared by {ranks_per_node} processes"
    )


def device_of(job: Job) -> DevicePeaks | None:
    """The device table's entry for the job's GPUs; None: it trains on CPUs, or there is no entry."""
    return find_device(device_name(job)) if job.device == "cuda" else None


def device_name(job: Job) -> str | None:
    """The model of the job's GPUs: as the site names it, or as this machine's driver does."""
    if job.site.gpus.name is not None or not backend_of(job.site).RUNS_HERE:
        return job.site.gpus.name
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    return None


Fields = dict[str, Any]


class NearestFit(NamedTuple):
    """A setting, as a command, and whether it fits or is tight."""

    command: str
    verdict: str


def nearest_fit(requested: Experiment, job: Job) -> NearestFit | None:
    """The first of the changes that fits, else the first that is tight; None: none of them does.

    requested: the request of which `job` is the resolved one.
    """
    tight = None
    site = job.site.name if job.site.name in site_names() else None
    for experiment in _candidates(requested, job.site.max_nodes):
        share = _share_of_memory(experiment, job)
        if share is None or share > TIGHT:
            continue
        arguments = command_of(experiment, site, job.site.defaults)
        if arguments is None:
            continue
        found = NearestFit(f"{COMMAND} {shlex.join(arguments)}", "fits" if share <= FITS else "is tight")
        if share <= FITS:
            return found
        tight = tight or found
    return tight


def _share_of_memory(experiment: Experiment, job: Job) -> float | None:
    """None: the change cannot be launched, or there is no memory to compare it with."""
    try:
        changed = prepare(experiment, job.site).job
    except RequestError:
        return None
    w = workload_of(changed)
    total = capacity_of(changed, w.ranks_per_node).total_bytes if w else None
    return peak_memory(w).highest.total / total if w and total else None


def _candidates(requested: Experiment, max_nodes: int | None) -> Iterator[Experiment]:
    for change in _changes(requested, max_nodes):
        kind = change.get("as", type(requested))
        given = {
            k: v for k, v in {**requested.model_dump(exclude_unset=True), **change}.items() if k in kind.model_fields
        }
        given["exercise"] = kind.model_fields["exercise"].default
        experiment, _ = validate(kind, given)
        if experiment is not None:
            yield experiment


def _changes(experiment: Experiment, max_nodes: int | None) -> Iterator[Fields]:
    """Fields to change: on the same ranks first, then over more of them."""
    half: Fields = {} if experiment.in_bf16 else {"mixed_precision": True}
    again: Fields = {"activation_checkpointing": True} | half
    size = getattr(experiment, "micro_batch_size", None) or 2
    smaller: list[Fields] = [{"micro_batch_size": size >> halvings} for halvings in range(1, size.bit_length())]
    yield from (*smaller, half, again, *(again | each for each in smaller))
    for spread in _spread(experiment, max_nodes):
        yield spread
        yield spread | half
        yield spread | again
        yield spread | again | {"micro_batch_size": 1}


def _spread(experiment: Experiment, max_nodes: int | None) -> Iterator[Fields]:
    """The model over more ranks: another stage or exercise, then more nodes."""
    if isinstance(experiment, Megatron):
        sizes: list[Fields] = [{"tp": None, "pp": stages} for stages in (1, 2, 4)]
    elif isinstance(experiment, DDP):
        sizes = [{"as": DeepSpeed, "model": experiment.model or experiment.default_model}]
    else:
        sizes = [{"zero_stage": 3, "hpz_partition": None}, {"zero_stage": 3, "hpz_partition": 1}]
    nodes = [experiment.nodes * factor for factor in (1, 2, 4, 8)]
    for number in (n for n in nodes if n == experiment.nodes or n <= (max_nodes or n)):
        yield from (one | {"nodes": number} for one in sizes)
