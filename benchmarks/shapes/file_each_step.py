"""A plain loop. Planted: every rank reads the table of class weights from its file again in each step."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from planting import PLANTED, STEPS, planted, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, CLASSES = 512, 50


def class_weights(file: Path) -> list[float]:
    table = json.loads(file.read_text(encoding="utf-8"))  # plant
    return [float(row["weight"]) for row in table][:CLASSES]  # plant


def main() -> None:
    rank, _ = start()
    file = Path(f"weights.{rank}.json")
    file.write_text(json.dumps([{"name": f"class {i}", "weight": 1 + i / 9e3} for i in range(14_000)]))
    body = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4))
    model = DistributedDataParallel(nn.Sequential(*body, nn.Linear(WIDTH, CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    weights = torch.ones(CLASSES)
    for _ in range(STEPS):
        samples, labels = torch.randn(192, WIDTH), torch.randint(CLASSES, (192,))
        if PLANTED:
            with planted():
                weights = torch.tensor(class_weights(file))  # plant
        loss = nn.functional.cross_entropy(model(samples), labels, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
