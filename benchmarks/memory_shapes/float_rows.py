"""Weights of each layer as Python's floats, in a nested dict of lists, to write JSON later."""

import torch
from torch import nn


def record(history, step, model):
    for name, weight in model.named_parameters():
        layer = history.setdefault(name, {"steps": [], "values": []})
        layer["steps"].append(step)
        layer["values"].append(weight.detach().flatten().tolist())  # keeps


def main(steps=160):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 96), nn.Sigmoid(), nn.Linear(96, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    history = {}
    for step in range(steps):
        x = torch.rand(2048, 128)
        loss = ((model(x) - x) ** 2).mean()
        model.zero_grad()
        loss.backward()
        optimizer.step()
        record(history, step, model)
    print({name: len(layer["values"]) for name, layer in history.items()})


main()
