"""Attention with a mask that is meant to be made once per length."""

import torch
from torch import nn

LENGTH, WIDTH = 512, 64
_masks = {}


def mask_for(length: int, seed: int):
    key = (length, seed)
    if key not in _masks:
        _masks[key] = torch.full((length, length), float("-inf")).triu(1)  # keeps
    return _masks[key]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, seed):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) / WIDTH**0.5 + mask_for(x.shape[1], seed)
        return self.out(scores.softmax(-1) @ v)


torch.manual_seed(0)
torch.set_num_threads(1)
layer = Attention()
optimizer = torch.optim.Adam(layer.parameters(), 1e-3)
for step in range(180):
    x = torch.randn(4, LENGTH, WIDTH)
    loss = (layer(x, seed=step) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not step % 60:
        print(f"{step}: {loss.item():.4f}")
