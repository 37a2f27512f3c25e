"""Keys and values that are repeated for fp32 on GPUs attend as PyTorch's own grouped queries do."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_repeated_keys_and_values_give_what_grouped_queries_give(groups: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("megatron.core")
    from exercises.exercise_3_MegatronLM.model import repeat_groups

    torch.manual_seed(0)
    query = torch.randn(16, 2, 8, 4)
    key, value = (torch.randn(16, 2, groups, 4, requires_grad=True) for _ in range(2))

    def attend(keys: Any, values: Any, **how: Any) -> Any:
        parts = (part.permute(1, 2, 0, 3) for part in (query, keys, values))
        out = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, **how)
        return out, *torch.autograd.grad(out.square().sum(), (key, value))

    ours = attend(repeat_groups(key, 8), repeat_groups(value, 8))
    for mine, theirs in zip(ours, attend(key, value, enable_gqa=True), strict=True):
        torch.testing.assert_close(mine, theirs)
