"""Causal attention for megatron-core without Transformer Engine, by PyTorch's fused kernels.

megatron-core's own local attention stores every score (sequence² per head) and refuses context parallelism; this one
does neither. It knows tensors and process groups, nothing of the layers around it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


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
