"""A recurrent network that carries its state from step to step, cut off from the graph."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.cell = nn.GRU(32, width, batch_first=True)
        self.out = nn.Linear(width, 32)

    def forward(self, x, state=None):
        y, state = self.cell(x, state)
        return self.out(y), state.detach()


def windows(signal, length):
    for start in range(0, signal.shape[1] - length - 1, length):
        yield signal[:, start : start + length], signal[:, start + 1 : start + length + 1]


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    signal = torch.randn(32, 16 * 160 + 2, 32).cumsum(1).sin()
    model, state, losses = Reader(), None, []
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for x, wanted in windows(signal, 16):
        predicted, state = model(x, state)
        loss = nn.functional.mse_loss(predicted, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(len(losses), sum(losses[-20:]) / 20)
