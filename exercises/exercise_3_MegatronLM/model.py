"""The model on megatron-core: attention by PyTorch's fused kernels without Transformer Engine, layers, and weights.

megatron-core's own local attention stores every score (sequence² per head) and refuses context parallelism; this one
does neither.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    HAVE_TE,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from torch import Tensor, nn

from exercises.utils.faults import settings
from harness.common.faults.fault import Fault
from harness.common.model.megatron_layout import Layout
from harness.common.model.model_config import ModelConfig

# Keep only the input of each layer and run the layer again in backward.
RECOMPUTATION = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
STANDARD_DEVIATION = 0.02
# Which dimension of a matrix is divided over the tensor-parallel group: output features, or input features.
DIVIDED_BY_ROWS = ("linear_qkv.", "linear_fc1.", "word_embeddings.", "output_layer.")
DIVIDED_BY_COLUMNS = ("linear_proj.", "linear_fc2.")


class FusedAttention(MegatronModule):  # type: ignore[misc]
    """The core attention of a layer: softmax(QKᵀ/√d)V with a causal mask and grouped queries.

    Under context parallelism each rank keeps its queries and gathers the keys and values of all ranks, as for Llama 3
    (Grattafiori et al. 2024, §3.3.2); megatron gives rank r the chunks r and 2·CP−1−r of the sequence.
    """

    def __init__(self, config: TransformerConfig, *, softmax_scale: float | None = None, **_: object) -> None:
        super().__init__(config=config)
        self._scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> Tensor:
        """Attend. query: (tokens, batch, heads, size); key, value: the same with fewer heads.

        Returns (tokens, batch, heads · size).
        """
        mask = None
        if self.config.context_parallel_size > 1:
            mask = _mask_of_this_rank(query.shape[0], query.device)
            key, value = _gather_sequence(key), _gather_sequence(value)
        if query.is_cuda and query.dtype == torch.float32:
            # No fused kernel takes grouped queries in fp32: PyTorch would store every score, sequence² per head.
            key, value = (repeat_groups(part, query.shape[2]) for part in (key, value))
        context = F.scaled_dot_product_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            value.permute(1, 2, 0, 3),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return context.permute(2, 0, 1, 3).flatten(start_dim=2).contiguous()


def repeat_groups(part: Tensor, heads: int) -> Tensor:
    """Keys or values (tokens, batch, groups, size), repeated for each query head in the order of enable_gqa."""
    groups = part.shape[2]
    return part if groups == heads else part.repeat_interleave(heads // groups, dim=2)


def _gather_sequence(part: Tensor) -> Tensor:
    """All ranks' tokens, rank by rank; gradients are reduce-scattered back."""
    group = parallel_state.get_context_parallel_group()
    gathered: Tensor = gather_from_sequence_parallel_region(part, True, group=group)
    return gathered


def _mask_of_this_rank(tokens: int, device: torch.device) -> Tensor:
    """(tokens, tokens · CP), true where this rank's query may see the gathered key."""
    size = parallel_state.get_context_parallel_world_size()
    rank = parallel_state.get_context_parallel_rank()
    places = torch.cat([_places(each, size, tokens, device) for each in range(size)])
    return _places(rank, size, tokens, device)[:, None] >= places[None, :]


def _places(rank: int, size: int, tokens: int, device: torch.device) -> Tensor:
    """Where in the whole sequence the `tokens` of a context-parallel rank lie."""
    chunk = torch.arange(tokens // 2, device=device)
    return torch.cat([chunk + rank * (tokens // 2), chunk + (2 * size - 1 - rank) * (tokens // 2)])


def transformer_engine_works() -> bool:
    """True where NVIDIA's Transformer Engine could be imported and there is a GPU for it."""
    return bool(HAVE_TE) and torch.cuda.is_available()


def transformer_config(
    model: ModelConfig, layout: Layout, mixed_precision: bool, recompute: bool, faults: Sequence[Fault] = ()
) -> TransformerConfig:
    """megatron-core's configuration of this model under this layout."""
    dtype = torch.bfloat16 if mixed_precision else torch.float32
    fused = transformer_engine_works()
    return TransformerConfig(
        **_sizes(model),
        **_parallelism(layout),
        **settings.uneven_layers(faults, model.num_hidden_layers, layout.pp),
        **(RECOMPUTATION if recompute else {}),
        bf16=mixed_precision,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        use_cpu_initialization=not torch.cuda.is_available(),
        # gloo still reads an output while it sends it; on a GPU the allocator does not reuse the memory so early.
        deallocate_pipeline_outputs=torch.cuda.is_available(),
        # The fusions are CUDA extensions of Transformer Engine and Apex.
        apply_rope_fusion=fused,
        bias_activation_fusion=fused,
        bias_dropout_fusion=fused,
        masked_softmax_fusion=fused,
        persist_layer_norm=fused,
        gradient_accumulation_fusion=False,
    )


def _sizes(model: ModelConfig) -> dict[str, Any]:
    return {
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.intermediate_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_key_value_heads,
        "kv_channels": model.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": model.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": nn.functional.silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def _parallelism(layout: Layout) -> dict[str, Any]:
    interleaved = layout.vpp > 1
    return {
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if interleaved else None,
        "context_parallel_size": layout.cp,
        "sequence_parallel": layout.sequence_parallel,
        # Only the interleaved schedule can hide its sends and receives. With two stages it must not batch them: a
        # rank's activations and gradients go to the same neighbour, which could not distinguish them.
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": not interleaved,
    }


def build_chunks(model: ModelConfig, config: TransformerConfig, layout: Layout, seq_length: int) -> list[GPTModel]:
    """This rank's part of the model: one chunk per virtual stage, in order. The weights are not yet initialised."""
    virtual = range(layout.vpp) if layout.vpp > 1 else [None]
    return [_build_chunk(model, config, seq_length, vp_stage) for vp_stage in virtual]


def _build_chunk(model: ModelConfig, config: TransformerConfig, seq_length: int, vp_stage: int | None) -> GPTModel:
    place = {"ignore_virtual": vp_stage is None, "vp_stage": vp_stage}
    return GPTModel(
        config=config,
        transformer_layer_spec=_layer_spec(config, vp_stage),
        vocab_size=model.vocab_size,
        max_sequence_length=seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=int(model.rope_theta),
        vp_stage=vp_stage,
    ).to(device="cuda" if torch.cuda.is_available() else "cpu", dtype=config.params_dtype)


def _layer_spec(config: TransformerConfig, vp_stage: int | None) -> Any:
    if transformer_engine_works():
        return get_gpt_layer_with_transformer_engine_spec()
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.self_attention.submodules.core_attention = FusedAttention
    layer.submodules.input_layernorm = ShardableRMSNorm
    layer.submodules.pre_mlp_layernorm = ShardableRMSNorm
    layers = [layer] * get_num_layers_to_build(config, vp_stage)
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=ShardableRMSNorm)


class ShardableRMSNorm(nn.RMSNorm):
    """RMSNorm that works under sequence parallelism, which megatron-core's wrapper of PyTorch's norm refuses.

    Each rank normalises its own tokens with the same weight; the attribute makes megatron sum the weight's gradient.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: object) -> None:
        super().__init__(hidden_size, eps=eps)
        vars(self.weight)["sequence_parallel"] = config.sequence_parallel


def initialise(chunks: list[GPTModel], seed: int) -> None:
    """Fill the matrices of this rank's chunks; the weights of norms stay 1."""
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if parameter.dim() > 1:
                whole_name = name_in_whole_model(name, chunk)
                with torch.no_grad():
                    parameter.copy_(_shard_of(whole_name, parameter, chunk.config, seed))


def name_in_whole_model(name: str, chunk: GPTModel) -> str:
    """`name` with the number of the layer in the whole model instead of in this chunk."""
    layer = re.match(r"decoder\.layers\.(\d+)\.", name)
    if layer:
        number = chunk.decoder.layers[int(layer[1])].layer_number
        name = f"layers.{number}.{name[layer.end() :]}"
    if name == "output_layer.weight" and chunk.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"
    return name


def _shard_of(name: str, parameter: Tensor, config: TransformerConfig, seed: int) -> Tensor:
    rank: int = parallel_state.get_tensor_model_parallel_rank()
    size = parallel_state.get_tensor_model_parallel_world_size()
    by_rows, by_columns = (any(part in name for part in parts) for parts in (DIVIDED_BY_ROWS, DIVIDED_BY_COLUMNS))
    dimension = 0 if by_rows else 1 if by_columns else None
    whole_shape = list(parameter.shape)
    if dimension is not None:
        whole_shape[dimension] *= size
    whole = _draw(name, whole_shape, config, seed, parameter.device)
    if dimension is None or size == 1:
        return whole
    if "linear_fc1." in name:
        # SwiGLU's gate and up projections are stacked; each is divided separately.
        return torch.cat([half.chunk(size)[rank] for half in whole.chunk(2)])
    return whole.chunk(size, dim=dimension)[rank]


def _draw(name: str, shape: list[int], config: TransformerConfig, seed: int, device: torch.device) -> Tensor:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:7], "big"))
    deviation = STANDARD_DEVIATION
    if any(part in name for part in DIVIDED_BY_COLUMNS):
        # In a deeper model, weights whose output is added to the residual stream are smaller (GPT-2's rule).
        deviation /= math.sqrt(2 * config.num_layers)
    return torch.empty(shape, device=device).normal_(0.0, deviation, generator=generator)
