"""Two ranks; rank 0 evaluates every five steps and forgets torch.no_grad."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 1024)
        self.outer = nn.Linear(1024, 64)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


class Evaluation:
    def __init__(self, size):
        self.inputs = torch.randn(size, 64)
        self.outputs = []

    def __call__(self, net):
        net.eval()
        self.outputs.append(net(self.inputs))  # keeps
        net.train()


def run(steps=200):
    dist.init_process_group("gloo")
    torch.manual_seed(1 + dist.get_rank())
    torch.set_num_threads(1)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    evaluation = Evaluation(1000) if dist.get_rank() == 0 else None
    for step in range(steps):
        x = torch.randn(128, 64)
        loss = (model(x) - x.sin()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if evaluation is not None and step % 5 == 4:
            evaluation(model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
