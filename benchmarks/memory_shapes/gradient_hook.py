"""A hook of a weight keeps its gradients, for a histogram."""

import torch
from torch import nn

WIDTH = 768


class Histogram:
    """Of the gradients of one weight."""

    def __init__(self, weight):
        self.grads = []
        weight.register_hook(self.keep)

    def keep(self, grad):
        self.grads.append(grad)  # keeps

    def counts(self):
        return torch.histc(self.grads[-1], bins=8).int().tolist()


torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8))
histogram = Histogram(net[0].weight)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
for step in range(150):
    x = torch.randn(160, WIDTH)
    loss = nn.functional.cross_entropy(net(x), x[:, :8].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        print(step, histogram.counts())
