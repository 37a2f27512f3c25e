"""An autoencoder that notes its activations on a board in another module."""

import events
import torch
from torch import nn


class AutoEncoder(nn.Module):
    def __init__(self, width=256, hidden=1024):
        super().__init__()
        self.down = nn.Linear(width, hidden)
        self.up = nn.Linear(hidden, width)

    def forward(self, x):
        hidden = self.down(x).relu()
        events.note("hidden", hidden)
        return self.up(hidden)


def main(steps=150):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for _ in range(steps):
        x = torch.randn(256, 256)
        loss = (model(x) - x).pow(2).mean()
        events.note("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(events.names())


if __name__ == "__main__":
    main()
