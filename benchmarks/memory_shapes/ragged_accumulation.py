"""Two ranks; gradients of four micro-batches of random sizes are accumulated."""

import random
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MICRO_BATCHES = 4


def step(model, optimizer, dice):
    optimizer.zero_grad()
    for number in range(MICRO_BATCHES):
        x = torch.randn(dice.randrange(16, 256), 256)
        with nullcontext() if number == MICRO_BATCHES - 1 else model.no_sync():
            loss = (model(x) - x.roll(1, 1)).pow(2).mean() / MICRO_BATCHES
            loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dice = random.Random(dist.get_rank())
    losses = [step(model, optimizer, dice) for _ in range(150)]
    if dist.get_rank() == 0:
        print(losses[0], losses[-1])
    dist.destroy_process_group()
