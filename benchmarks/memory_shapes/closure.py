"""A logger made by a function; what it logs stays in the list of its closure."""

import torch
from torch import nn


def make_logger(every):
    kept = []

    def log(step, tensor):
        kept.append(tensor.clone())  # keeps
        if step % every == 0:
            print(f"step {step}: mean of all {sum(each.mean().item() for each in kept) / len(kept):.4f}")

    return log


def train(model, optimizer, log, steps):
    for step in range(steps):
        x = torch.randn(96, 256)
        hidden = torch.tanh(model[0](x))
        loss = (model[1](hidden) - x.cumsum(1)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, hidden.detach())


torch.manual_seed(0)
torch.set_num_threads(1)
layers = nn.ModuleList([nn.Linear(256, 1024), nn.Linear(1024, 256)])
train(layers, torch.optim.AdamW(layers.parameters(), lr=1e-3), make_logger(every=60), steps=220)
