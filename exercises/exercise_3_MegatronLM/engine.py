"""The training engine: the model's chunks under megatron's data parallelism, the optimizer, the pipeline schedule.

Knows megatron-core; knows nothing of files, windows or metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from exercises.exercise_3_MegatronLM import model
from exercises.exercise_3_MegatronLM.data import MicroBatch
from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.faults import settings
from harness.common.model.megatron_layout import BatchSizes, Layout
from harness.common.model.model_config import ModelConfig

# megatron's default bucket of 40 million parameters would hold a tiny model whole: nothing left to overlap.
BUCKET_OF_A_TINY_MODEL = 100_000
WEIGHT_DECAY = 0.1
GRADIENT_CLIPPING = 1.0


def start_groups(layout: Layout, seed: int) -> None:
    """Make the process groups of every parallel dimension and seed megatron's random numbers."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        context_parallel_size=layout.cp,
        create_gloo_process_groups=False,
    )
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


@dataclass(frozen=True)
class Engine:
    """The parts of a training on one rank."""

    chunks: list[DistributedDataParallel]
    config: TransformerConfig
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    batch: BatchSizes

    def zero_grad(self) -> None:
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()

    def forward_backward(self, read: Callable[[], Iterator[MicroBatch]]) -> Tensor:
        """Run megatron's schedule over the iteration's micro-batches, and reduce the gradients over all replicas.

        `read` makes an iterator over this rank's micro-batches. Returns the global batch's mean loss, on every
        rank.
        """
        results = get_forward_backward_func()(
            forward_step_func=partial(_forward, self.batch),
            # The first stage needs the tokens, the last one the labels; the stages between need no data.
            data_iterator=[
                read() if chunk.module.pre_process or chunk.module.post_process else None for chunk in self.chunks
            ],
            model=self.chunks,
            num_microbatches=self.num_microbatches,
            seq_length=self.batch.seq_length,
            micro_batch_size=self.batch.micro_size,
            forward_only=False,
        )
        # Only ranks of the last stage have losses: TP ranks have the same loss, DP and CP ranks different parts.
        losses = [result["loss"] for result in results]
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
        dist.all_reduce(loss)
        copies = parallel_state.get_tensor_model_parallel_world_size()
        loss /= copies * parallel_state.get_data_parallel_world_size()
        return loss

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per iteration and replica."""
        return self.batch.num_microbatches(parallel_state.get_data_parallel_world_size())

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next optimizer step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def save(self, folder: Path) -> None:
        """Write the state of model, optimizer and scheduler in Megatron's format: each rank its shards."""
        model = [chunk.module.sharded_state_dict(prefix=f"chunk{place}.") for place, chunk in enumerate(self.chunks)]
        whole = {name: part for chunk in model for name, part in chunk.items()}
        each_its_part = {"distrib_optim_sharding_type": "dp_reshardable"}  # Megatron-LM's default
        optimizer = self.optimizer.sharded_state_dict(whole, metadata=each_its_part)
        state = {**whole, "optimizer": optimizer, "scheduler": self.scheduler.state_dict()}
        dist_checkpointing.save(state, str(folder))

    def parameters(self) -> int:
        return sum(parameter.numel() for chunk in self.chunks for parameter in chunk.parameters())


def build(arguments: MegatronArguments, sizes: ModelConfig, layout: Layout, batch: BatchSizes) -> Engine:
    """Build the engine, with initial weights that do not depend on `layout`."""
    config = model.transformer_config(
        sizes, layout, arguments.mixed_precision, arguments.activation_checkpointing, arguments.faults
    )
    chunks = model.build_chunks(sizes, config, layout, batch.seq_length)
    model.initialise(chunks, arguments.seed)
    replicas = _data_parallel(chunks, config, arguments, sizes.tiny)
    settings = _optimizer_config(arguments, config)
    optimizer = get_megatron_optimizer(settings, replicas, use_gloo_process_groups=False)
    return Engine(replicas, config, optimizer, _scheduler(optimizer, arguments), batch)


def _data_parallel(
    chunks: list[GPTModel], config: TransformerConfig, arguments: MegatronArguments, tiny: bool
) -> list[DistributedDataParallel]:
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=True,
        overlap_grad_reduce=True,
        overlap_param_gather=True,
        grad_reduce_in_fp32=arguments.mixed_precision,
        bucket_size=_bucket_size(arguments, tiny),
    )
    replicas = [
        DistributedDataParallel(config, ddp, chunk, disable_bucketing=place > 0) for place, chunk in enumerate(chunks)
    ]
    config.finalize_model_grads_func = finalize_model_grads
    no_sync = [replica.no_sync for replica in replicas]
    config.no_sync_func = no_sync if len(replicas) > 1 else no_sync[0]
    return replicas


def _bucket_size(arguments: MegatronArguments, tiny: bool) -> int | None:
    """Parameters of a bucket of gradients, which travel in fp32; None: megatron's default."""
    usual_bytes = 4 * BUCKET_OF_A_TINY_MODEL if tiny else None
    size_bytes = settings.bucket_bytes(arguments.faults, usual_bytes)
    return None if size_bytes is None else size_bytes // 4


def _optimizer_config(arguments: MegatronArguments, config: TransformerConfig) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam",
        lr=arguments.learning_rate,
        weight_decay=WEIGHT_DECAY,
        adam_beta2=0.95,
        clip_grad=GRADIENT_CLIPPING,
        bf16=arguments.mixed_precision,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=True,
        overlap_param_gather=True,
    )


def _scheduler(optimizer: MegatronOptimizer, arguments: MegatronArguments) -> OptimizerParamScheduler:
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=arguments.learning_rate,
        min_lr=0.0,
        lr_warmup_steps=arguments.lr_warmup_steps,
        lr_decay_steps=arguments.lr_warmup_steps + arguments.total_steps,
        lr_decay_style="constant",
        start_wd=WEIGHT_DECAY,
        end_wd=WEIGHT_DECAY,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )


def _forward(batch: BatchSizes, micro_batches: Iterator[MicroBatch] | None, chunk: Any) -> tuple[Tensor, Any]:
    """The forward step of megatron's schedule: a micro-batch's output, and the function that turns it into a loss."""
    if micro_batches is None:
        return chunk(None, None, None), None
    data = next(micro_batches)
    output = chunk(data.tokens, data.positions, None, labels=data.labels)
    return output, partial(_loss, batch)


def _loss(batch: BatchSizes, token_losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    # Divided by all tokens of the micro-batch: under context parallelism this rank has only some of them.
    loss = token_losses.float().sum() / (batch.micro_size * batch.seq_length)
    return loss, {"loss": loss.detach().clone()}
