"""Trees whose nodes know their parents: cycles that only Python's collector frees."""

import torch
from torch import nn


class Node:
    def __init__(self, parent, value):
        self.parent, self.value = parent, value
        self.children = []
        if parent is not None:
            parent.children.append(self)

    def sum(self):
        return self.value + sum(child.sum() for child in self.children)


def tree(depth, parent=None):
    node = Node(parent, torch.randn(64))
    if depth:
        for _ in range(2):
            tree(depth - 1, node)
    return node


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))

    def forward(self, roots):
        return self.layers(torch.stack([root.sum() for root in roots]))


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(200):
    roots = [tree(depth=6) for _ in range(8)]
    loss = (model(roots).squeeze(1) - torch.stack([root.value.mean() for root in roots])).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
