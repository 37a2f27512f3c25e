"""The memory of one rank of a workload: theory's state, activations and buffers of its strategy, at its peak.

With a pipeline the stage that needs most: the first holds most micro-batches, the last the logits.
"""

from __future__ import annotations

from harness.common.model_config import ModelConfig
from harness.study.plan.workload import Workload
from harness.theory import buffers as theory
from harness.theory.activations import Activations, Arithmetic, chunks_in_flight, of_megatron, of_transformers
from harness.theory.buffers import Buffers, ZeroBuckets
from harness.theory.memory import megatron_parameters, megatron_state_bytes, state_bytes
from harness.theory.peak import Peak, peak_of

FRAMEWORK_BYTES = {"cuda": 1.5e9, "cpu": 0.6e9}
FRAMEWORK_SOURCE = {
    "cuda": "an assumption: context, kernels and NCCL's buffers take 1 to 2 GB (Hugging Face, Model training anatomy)",
    "cpu": "measured: PyTorch, transformers and the profiler take 0.45 to 0.8 GB",
}


def peak_memory(w: Workload, *, checkpointing: bool | None = None, framework: float | None = None) -> Peak:
    """The peak of the rank that needs most.

    checkpointing: instead of the workload's own. framework: bytes instead of the usual ones.
    """
    again = w.checkpointing if checkpointing is None else checkpointing
    base = FRAMEWORK_BYTES[w.device] if framework is None else framework
    if w.sharding is None:
        stages = {0, w.layout.pp - 1}
        return max((of_stage(w, s, again, base) for s in stages), key=lambda peak: peak.highest.total)
    return _of_replica(w, again, base)


def _of_replica(w: Workload, checkpointing: bool, framework: float) -> Peak:
    ranks, sharding = w.ranks, w.sharding or "none"
    state = state_bytes(w.parameters, ranks, sharding=sharding, bf16=w.bf16, hpz=w.hpz, trained=w.trained)
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


def _buffers(w: Workload, parameters: int) -> Buffers:
    on_gpu, largest = w.device == "cuda", largest_tensor(w)
    if w.sharding == "fsdp":
        unit = max(parameters - layers_of(w.model), layers_of(w.model) // w.model.num_hidden_layers)
        shard = largest / (w.hpz if w.hpz > 1 else w.ranks)
        return theory.of_fsdp(unit, shard, bf16=w.bf16, on_gpu=on_gpu)
    if w.buckets is None:
        return theory.of_ddp(parameters, w.ranks, largest, on_gpu=on_gpu)
    shape: ZeroBuckets = w.buckets
    if w.sharding == "zero3":
        return theory.of_zero3(parameters, w.ranks, largest, shape, bf16=w.bf16, on_gpu=on_gpu)
    return theory.of_zero2(parameters, w.ranks, shape, bf16=w.bf16, on_gpu=on_gpu)


def layers_of(model: ModelConfig) -> int:
    """Parameters in the layers: without embedding, final norm and output."""
    outside = (
        model.vocab_size * model.hidden_size * (1 if model.tie_word_embeddings else 2) + model.hidden_size
    )
    return model.parameters() - outside


def largest_tensor(w: Workload) -> int:
    """Parameters of the largest matrix."""
    model = w.model
    return model.hidden_size * max(model.vocab_size, model.intermediate_size)


def of_stage(w: Workload, stage: int, checkpointing: bool, framework: float) -> Peak:
    """The peak of a rank of one pipeline stage."""
    layout = w.layout
    dense, experts = megatron_parameters(w.model, layout, stage)
    state = megatron_state_bytes(dense, experts, layout, bf16=w.bf16)
    shard = state.optimizer / (12 if w.bf16 else 8)
    activations = of_megatron(w.model, w.micro_batch, w.seq_length, layout, bf16=w.bf16, stage=stage)
    return peak_of(
        state,
        activations,
        theory.of_megatron(dense + experts, shard, largest_tensor(w) // layout.tp, on_gpu=w.device == "cuda"),
        checkpointing=checkpointing,
        in_flight=chunks_in_flight(layout.pp, stage, w.micro_batches, layout.vpp),
        gradients_stay=True,
        framework=framework,
    )
