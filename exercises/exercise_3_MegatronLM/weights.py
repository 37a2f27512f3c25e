"""Initial weights that are the same for every parallel layout, so that losses of layouts can be compared.

Every rank draws each whole matrix from a generator, whose seed is the matrix's name in the undivided model, and keeps
its shard. Knows the names of megatron-core's parameters; nothing of training.
"""

from __future__ import annotations

import hashlib
import math
import re

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig
from torch import Tensor

STANDARD_DEVIATION = 0.02
# Which dimension of a matrix is divided over the tensor-parallel group: output features, or input features.
DIVIDED_BY_ROWS = ("linear_qkv.", "linear_fc1.", "word_embeddings.", "output_layer.")
DIVIDED_BY_COLUMNS = ("linear_proj.", "linear_fc2.")


def initialise(chunks: list[GPTModel], seed: int) -> None:
    """Fill the matrices of this rank's chunks; the weights of norms stay 1."""
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if parameter.dim() > 1:
                whole_name = name_in_whole_model(name, chunk)
                with torch.no_grad():
                    parameter.copy_(_shard_of(whole_name, parameter, chunk.config, seed))


def name_in_whole_model(name: str, chunk: GPTModel) -> str:
    """`name` with the numbers of layer and expert in the whole model instead of in this chunk."""
    layer = re.match(r"decoder\.layers\.(\d+)\.", name)
    if layer:
        number = chunk.decoder.layers[int(layer[1])].layer_number
        name = f"layers.{number}.{name[layer.end() :]}"
    expert = re.search(r"local_experts\.(\d+)\.", name) or re.search(r"(?<=\.weight)(\d+)$", name)
    if expert:
        number = int(expert[1]) + _first_local_expert(chunk.config)
        # Transformer Engine numbers an expert's weight, the local layers its module: one name for both.
        name = f"experts.{number}." + name[: expert.start()] + name[expert.end() :]
    if name == "output_layer.weight" and chunk.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"
    return name


def _first_local_expert(config: TransformerConfig) -> int:
    per_rank: int = config.num_moe_experts // config.expert_model_parallel_size
    return per_rank * int(parallel_state.get_expert_model_parallel_rank())


def _shard_of(name: str, parameter: Tensor, config: TransformerConfig, seed: int) -> Tensor:
    rank, size = _place_in_tensor_group(name)
    dimension = _divided_dimension(name)
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


def _place_in_tensor_group(name: str) -> tuple[int, int]:
    if name.startswith("experts."):
        return (
            parallel_state.get_expert_tensor_parallel_rank(),
            parallel_state.get_expert_tensor_parallel_world_size(),
        )
    return (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size())


def _divided_dimension(name: str) -> int | None:
    if any(part in name for part in DIVIDED_BY_ROWS):
        return 0
    if any(part in name for part in DIVIDED_BY_COLUMNS):
        return 1
    return None


def _draw(name: str, shape: list[int], config: TransformerConfig, seed: int, device: torch.device) -> Tensor:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest[:7], "big"))
    deviation = STANDARD_DEVIATION
    if any(part in name for part in DIVIDED_BY_COLUMNS):
        # In a deeper model, weights whose output is added to the residual stream are smaller (GPT-2's rule).
        deviation /= math.sqrt(2 * config.num_layers)
    return torch.empty(shape, device=device).normal_(0.0, deviation, generator=generator)
