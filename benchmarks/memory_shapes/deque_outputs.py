"""The latest outputs in a deque that was made without maxlen."""

from collections import deque

import torch
from torch import nn

BATCH, WIDTH, OUT = 2048, 24, 1024


def smoothness(outputs):
    """How much the two latest outputs differ."""
    if len(outputs) < 2:
        return 0.0
    return (outputs[-1] - outputs[-2]).abs().mean().item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, OUT)
    target = torch.randn(1, OUT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recent = deque()
    for step in range(120):
        out = model(torch.randn(BATCH, WIDTH))
        loss = nn.functional.mse_loss(out, target.expand_as(out))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        recent.append(out.detach())  # keeps
        if step % 30 == 0:
            print(step, smoothness(recent))


if __name__ == "__main__":
    main()
