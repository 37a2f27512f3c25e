"""How many parameters a model has and how many FLOPs a token costs, from its sizes alone.

The training scripts count on their own, so that they run without the harness; a test holds them against this.
"""

from __future__ import annotations

from harness.experiment.model import Model


def parameters(model: Model) -> int:
    """All parameters, embeddings included."""
    embedding = model.vocab_size * model.hidden_size
    output = 0 if model.tie_word_embeddings else embedding
    norms = (2 * model.num_hidden_layers + 1) * model.hidden_size
    return (
        embedding + output + norms + model.num_hidden_layers * layer_weights(model, model.num_local_experts)
    )


def layer_weights(model: Model, experts: int) -> int:
    """Weights of one layer's matrices with `experts` feed-forward networks (1 for a dense model)."""
    query = model.hidden_size * model.num_attention_heads * model.head_dim
    key = model.hidden_size * model.num_key_value_heads * model.head_dim
    feed_forward = 3 * model.hidden_size * model.intermediate_size
    router = model.hidden_size * model.num_local_experts if model.num_local_experts > 1 else 0
    return 2 * query + 2 * key + experts * feed_forward + router


def flops_per_token(model: Model, seq_length: int) -> float:
    """Model FLOPs of forward and backward per token: 6·N + 12·L·h·S, attention counted whole.

    N: weights that multiply a token (of a mixture, the experts chosen); L: layers; h: heads × head size;
    S: `seq_length`. Source: Chowdhery et al., PaLM, 2022, appendix B.
    """
    weights = model.num_hidden_layers * layer_weights(model, model.num_experts_per_tok)
    weights += model.vocab_size * model.hidden_size
    attention = model.num_hidden_layers * model.num_attention_heads * model.head_dim * seq_length
    return 6.0 * weights + 12.0 * attention
