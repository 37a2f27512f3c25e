"""Two heads on one trunk: the first backward retains the graph, and the log keeps its loss."""

import torch
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(128, 2048), nn.Tanh())
        self.first, self.second = nn.Linear(2048, 64), nn.Linear(2048, 64)

    def forward(self, x):
        shared = self.trunk(x)
        return self.first(shared), self.second(shared)


def main(steps: int = 160) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    log = {"first": [], "second": []}
    for _ in range(steps):
        x = torch.randn(128, 128)
        first, second = model(x)
        loss_first = (first - x[:, :64]).pow(2).mean()
        loss_second = (second - x[:, 64:]).pow(2).mean()
        optimizer.zero_grad()
        loss_first.backward(retain_graph=True)
        loss_second.backward()
        optimizer.step()
        log["first"].append(loss_first)  # keeps
        log["second"].append(loss_second.item())
    print(float(log["first"][-1]), log["second"][-1])


if __name__ == "__main__":
    main()
