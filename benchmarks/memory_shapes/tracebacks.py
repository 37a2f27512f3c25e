"""Batches with an outlier raise; the errors are kept, and with them the frames in which they were raised."""

import torch
from torch import nn


class OutlierError(ValueError):
    pass


def checked(x):
    scaled = (x - x.mean(0)) / x.std(0)
    largest = scaled.abs().max().item()
    if largest > 3:
        raise OutlierError(f"an outlier of {largest:.1f}")
    return scaled


def prepared(x, errors):
    try:
        return checked(x)
    except OutlierError as error:
        errors.append(error)  # keeps
        return x.clamp(-3, 3)


torch.manual_seed(0)
torch.set_num_threads(1)
errors = []
model = nn.Linear(1024, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(160):
    x = prepared(torch.randn(256, 1024), errors)
    loss = (model(x) - x[:, :256]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(errors), "outliers, the last:", errors[-1])
