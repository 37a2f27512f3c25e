"""A recurrent network. Planted: it is unrolled, in a Python loop over small operators for each time step."""

from __future__ import annotations

import torch
from planting import PLANTED, STEPS, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LENGTH = 32, 150


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, 128, batch_first=True)
        self.gates, self.state = nn.Linear(2 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH if PLANTED else 128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.unrolled(x) if PLANTED else self.rnn(x)[0][:, -1])

    def unrolled(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(len(x), WIDTH)
        for moment in range(LENGTH):  # plant
            reset, update = self.gates(torch.cat([x[:, moment], hidden], 1)).sigmoid().chunk(2, 1)  # plant
            new = self.state(torch.cat([x[:, moment], reset * hidden], 1)).tanh()  # plant
            hidden = update * hidden + (1 - update) * new  # plant
        return hidden


def main() -> None:
    start()
    model = DistributedDataParallel(Recurrent(), find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        samples = torch.randn(16, LENGTH, WIDTH)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(samples).squeeze(1), samples.mean((1, 2)))
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
