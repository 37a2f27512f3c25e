"""What a job trains, as the numbers that theory takes: model, layout, batch, precision, device. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from harness.common.megatron_layout import Layout
from harness.common.model_config import ModelConfig
from harness.common.precision import Precision
from harness.experiment.advice import Sharding
from harness.experiment.base import Experiment
from harness.experiment.ddp import DDP
from harness.experiment.deepspeed import DeepSpeed
from harness.experiment.megatron import Megatron
from harness.experiment.training import Training
from harness.launch.exercises.base import DeviceKind
from harness.launch.exercises.deepspeed_config import deepspeed_config
from harness.launch.job import Job
from harness.theory.buffers import ZeroBuckets

DDP_BUCKET_BYTES = 25 * 2**20  # PyTorch's bucket_cap_mb


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
    bucket_bytes: float = DDP_BUCKET_BYTES
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
        replicas = self.layout.dp
        return self.micro_batch * self.seq_length * self.micro_batches_per_step * replicas


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


@singledispatch
def _own(asked: Experiment, job: Job) -> dict[str, Any]:
    """What one exercise adds: here a data-parallel training whose weights stay in float32."""
    return {
        "micro_batches": getattr(asked, "gradient_accumulation_steps", 1),
        "micro_batches_per_step": 1,
        "bf16": False,
        "layout": Layout(asked.world_size or 1),
        "sharding": asked.sharding or "none",
    }


@_own.register
def _(asked: DDP, job: Job) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "micro_batches": asked.gradient_accumulation_steps,
        "micro_batches_per_step": 1,
        "bf16": asked.fsdp is not None and asked.in_bf16,
        "layout": Layout(asked.world_size or 1),
        "sharding": asked.sharding,
        "hpz": asked.copy_ranks,
        "lora": asked.lora,
    }
    return fields if asked.bucket_cap_mb is None else fields | {"bucket_bytes": asked.bucket_cap_mb * 2**20}


@_own.register
def _(asked: DeepSpeed, job: Job) -> dict[str, Any]:
    zero = deepspeed_config(asked, tiny=job.model is not None and job.model.tiny).zero_optimization
    live = zero.stage3_max_live_parameters or 0
    return {
        "micro_batches": asked.gradient_accumulation_steps,
        "micro_batches_per_step": 1,
        "bf16": asked.in_bf16,
        "layout": Layout(asked.world_size or 1),
        "sharding": asked.sharding,
        "hpz": asked.copy_ranks,
        "buckets": ZeroBuckets(zero.reduce_bucket_size, live, zero.overlap_comm),
    }


@_own.register
def _(asked: Megatron, job: Job) -> dict[str, Any]:
    micro_batches = max(1, asked.batch.num_microbatches(asked.layout.dp))
    return {
        "micro_batches": micro_batches,
        "micro_batches_per_step": micro_batches,
        "bf16": asked.in_bf16,
        "layout": asked.layout,
    }
