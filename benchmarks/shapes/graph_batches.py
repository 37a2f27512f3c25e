"""Message passing on graphs of different sizes. Planted: both ranks build the adjacency in Python."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, planted, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

NODES, WIDTH = 400, 192


def neighbours(edges: Tensor) -> Tensor:
    matrix = [[0.0] * NODES for _ in range(NODES)]  # plant
    for source, target in edges.tolist():  # plant
        matrix[source][target] = 1.0  # plant
        matrix[target][source] = 1.0  # plant
    return torch.tensor(matrix)  # plant


def at_once(edges: Tensor) -> Tensor:
    matrix = torch.zeros(NODES, NODES)
    matrix[edges[:, 0], edges[:, 1]] = 1.0
    return torch.maximum(matrix, matrix.T)


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        for layer in self.layers:
            nodes = torch.relu(adjacency @ layer(nodes) / 10)
        return self.head(nodes).mean()


def main() -> None:
    start()
    model = DistributedDataParallel(Passing())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            nodes, edges = torch.randn(NODES, WIDTH), torch.randint(NODES, (4000, 2))
            if PLANTED:
                with planted():
                    adjacency = neighbours(edges)  # plant
            else:
                adjacency = at_once(edges)
            with model.no_sync():
                (model(nodes, adjacency) - edges.float().mean() / NODES).pow(2).backward()
        model(nodes, adjacency).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
