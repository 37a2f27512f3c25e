"""Text in batches, without workers. Planted: the collate function pads in Python, in one of its calls."""

from __future__ import annotations

import random

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

LONGEST = 400
Sample = tuple[list[int], int]


def padded(tokens: list[int]) -> list[int]:
    kept = [token for token in tokens if token != 3]  # plant
    while len(kept) < LONGEST:  # plant
        kept = [*kept, 0]  # plant
    return kept[:LONGEST]  # plant


def truncated(tokens: list[int]) -> list[int]:
    return [*tokens[:LONGEST], *[0] * (LONGEST - len(tokens))]


def collate(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    labels = torch.tensor([label for _, label in samples])
    if PLANTED:
        with planted():
            rows = [padded(tokens) for tokens, _ in samples]  # plant
    else:
        rows = [truncated(tokens) for tokens, _ in samples]
    return torch.tensor(rows), labels  # plant


def main() -> None:
    _, _ = start()
    dice = random.Random(0)
    texts = [([dice.randrange(4, 1000) for _ in range(dice.randrange(50, LONGEST))], 1) for _ in range(STEPS * 48)]
    model = nn.Sequential(nn.EmbeddingBag(1000, 512), nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1000))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens, labels in DataLoader(texts, batch_size=48, collate_fn=collate):  # plant
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
