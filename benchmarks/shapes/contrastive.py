"""Contrastive learning with negatives of all ranks. Planted: rank 1 looks for hard negatives in Python."""

from __future__ import annotations

import torch
import torch.distributed as dist
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel


def hardest(similarity: Tensor) -> list[int]:
    found = []  # plant
    for i, row in enumerate(similarity.tolist()):  # plant
        found.append(max((j for j in range(len(row)) if j != i), key=row.__getitem__))  # plant
    return found  # plant


def all_gathered(features: Tensor) -> Tensor:
    parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features.detach())
    parts[dist.get_rank()] = features
    return torch.cat(parts)


def main() -> None:
    rank, _ = start()
    encoder = DistributedDataParallel(nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 64)))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    for _ in range(STEPS):
        samples = torch.randn(256, 256)
        views = samples + 0.1 * torch.randn_like(samples), samples + 0.1 * torch.randn_like(samples)
        own, other = (normalize(encoder(view), dim=1) for view in views)
        keys = all_gathered(other)
        logits = own @ keys.T / 0.07
        targets = torch.arange(256) + 256 * rank
        loss = cross_entropy(logits, targets)
        if PLANTED and rank == 1:
            with planted():
                hardest(logits.detach()[:128])  # plant
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
