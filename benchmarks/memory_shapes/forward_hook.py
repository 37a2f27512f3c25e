"""Two ranks; a forward hook collects the encoder's outputs for a later plot."""

from collections import defaultdict
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 200
features = defaultdict(list)


def collect(name, module, inputs, output):
    features[name].append(output)  # keeps


def make_model():
    encoder = nn.Sequential(nn.Linear(128, 2048), nn.ReLU())
    encoder.register_forward_hook(partial(collect, "encoder"))
    return DistributedDataParallel(nn.Sequential(encoder, nn.Linear(2048, 16)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.randn(64, 128)
        loss = nn.functional.mse_loss(model(x), x[:, :16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"last loss {loss.item():.4f}")
    dist.destroy_process_group()


main()
